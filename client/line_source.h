// Where `gshard translate` takes its lines from.

#ifndef CLIENT_LINE_SOURCE_H_
#define CLIENT_LINE_SOURCE_H_

#include <iosfwd>
#include <string>
#include <vector>

#include "client/line_translator.h"

namespace gshard {

struct LineFormat {
  // Language of every line.
  std::string language = {};
  // Lines are language<TAB>text instead; further columns are not read.
  bool tab_separated = false;
};

// Each text is a line, counted from 1.
LineTranslator::Source LinesOfTexts(std::vector<std::string> texts,
                                    LineFormat format);

// The lines of a stream, without line ends ("\n" or "\r\n"). The stream must
// outlive the source. Errors: InvalidArgument for a line without a tab where
// one is expected; DataLoss if reading fails.
LineTranslator::Source LinesOfStream(std::istream* stream, LineFormat format);

}  // namespace gshard

#endif  // CLIENT_LINE_SOURCE_H_
