#include "services/data/line_scanner.h"

namespace gshard {

void LineScanner::AppendToLine(absl::string_view part) {
  bytes_ += part.size();
  if (bytes_ > max_bytes_) {
    too_long_ = true;
    line_.clear();
  }
  if (!too_long_) line_.append(part.data(), part.size());
}

void LineScanner::EndLine() {
  on_line_({++number_, offset_, line_, too_long_});
  offset_ += bytes_ + 1;
  bytes_ = 0;
  line_.clear();
  too_long_ = false;
}

void LineScanner::Append(absl::string_view part) {
  while (!part.empty()) {
    const size_t end = part.find('\n');
    AppendToLine(part.substr(0, end));
    if (end == absl::string_view::npos) return;
    EndLine();
    part.remove_prefix(end + 1);
  }
}

void LineScanner::Finish() {
  if (bytes_ > 0) EndLine();
}

}  // namespace gshard
