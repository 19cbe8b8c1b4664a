// Sources of lines for `gshard translate`.

#ifndef CLIENT_LINE_SOURCE_H_
#define CLIENT_LINE_SOURCE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/line_translator.h"

namespace gshard {

struct LineFormat {
  // Language of every line.
  std::string language = {};
  // Lines are language<TAB>text instead; further columns are ignored.
  bool tab_separated = false;
};

// Each text is a line, counted from 1.
LineTranslator::Source LinesOfTexts(std::vector<std::string> texts,
                                    LineFormat format);

// The lines of an open file, without line ends ("\n" or "\r\n") and without a
// byte order mark; from a pipe or terminal as they arrive. The caller keeps the
// descriptor, which must outlive the source. A line without a tab where one is
// expected, or of more than 64 KiB, has an InvalidArgument error. Errors: those
// of file.h if reading fails.
LineTranslator::Source LinesOfFile(int file, LineFormat format);

// The lines of the file at `path`. Errors: those of file.h; FailedPrecondition
// if it is a directory.
absl::StatusOr<LineTranslator::Source> LinesOfPath(const std::string& path,
                                                   LineFormat format);

}  // namespace gshard

#endif  // CLIENT_LINE_SOURCE_H_
