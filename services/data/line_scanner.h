// LineScanner: splits a text that arrives in parts into lines.

#ifndef SERVICES_DATA_LINE_SCANNER_H_
#define SERVICES_DATA_LINE_SCANNER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/strings/string_view.h"

namespace gshard {

struct ScannedLine {
  int64_t number = 0;   // from 1
  uint64_t offset = 0;  // offset of the line in the text
  // Without its line feed; empty if the line is too long.
  absl::string_view text;
  bool too_long = false;
};

class LineScanner {
 public:
  using OnLine = std::function<void(const ScannedLine&)>;

  // Lines of more than `max_bytes` are not kept in memory.
  LineScanner(size_t max_bytes, OnLine on_line)
      : max_bytes_(max_bytes), on_line_(std::move(on_line)) {}

  // The next part of the text.
  void Append(absl::string_view part);

  // The text has ended; a last line needs no line feed.
  void Finish();

  int64_t lines() const { return number_; }

 private:
  void AppendToLine(absl::string_view part);
  void EndLine();

  const size_t max_bytes_;
  const OnLine on_line_;
  std::string line_;  // first part of a line that spans parts
  bool too_long_ = false;
  uint64_t offset_ = 0;  // offset of the current line
  uint64_t bytes_ = 0;   // bytes of the current line so far
  int64_t number_ = 0;
};

}  // namespace gshard

#endif  // SERVICES_DATA_LINE_SCANNER_H_
