#include "client/line_source.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <deque>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "services/base/status_macros.h"
#include "services/data/line_scanner.h"
#include "services/storage/file.h"

namespace gshard {
namespace {

constexpr size_t kMaxLineBytes = 64 << 10;
constexpr size_t kPartBytes = 64 << 10;
constexpr char kByteOrderMark[] = "\xEF\xBB\xBF";

SourceLine ToLine(int64_t number, std::string text, const LineFormat& format) {
  if (!text.empty() && text.back() == '\r') text.pop_back();
  SourceLine line{number, format.language, std::move(text)};
  if (!format.tab_separated || absl::StripAsciiWhitespace(line.text).empty()) {
    return line;
  }
  const size_t tab = line.text.find('\t');
  if (tab == std::string::npos) {
    line.error = absl::InvalidArgumentError(absl::StrCat(
        "line ", number, ": expected language<TAB>text, got no tab"));
    return line;
  }
  line.language = line.text.substr(0, tab);
  const size_t end = line.text.find('\t', tab + 1);
  line.text =
      line.text.substr(tab + 1, end == std::string::npos ? end : end - tab - 1);
  return line;
}

// The lines of a file that may block. Holds one part of it.
class FileLines {
 public:
  FileLines(int file, bool owned, LineFormat format)
      : file_(file), owned_(owned), format_(std::move(format)) {}
  ~FileLines() {
    if (owned_) close(file_);
  }
  FileLines(const FileLines&) = delete;
  FileLines& operator=(const FileLines&) = delete;

  absl::StatusOr<std::optional<SourceLine>> Next() {
    Fill(/*until=*/-1, /*timeout_ms=*/-1);
    if (lines_.empty()) {
      RETURN_IF_ERROR(status_);
      return std::optional<SourceLine>();
    }
    const Line line = std::move(lines_.front());
    lines_.pop_front();
    if (!line.too_long) {
      absl::string_view text = line.text;
      if (line.number == 1) absl::ConsumePrefix(&text, kByteOrderMark);
      return std::optional(ToLine(line.number, std::string(text), format_));
    }
    return std::optional(
        SourceLine{.number = line.number,
                   .error = absl::InvalidArgumentError(
                       absl::StrCat("line ", line.number, ": expected at most ",
                                    kMaxLineBytes, " bytes"))});
  }

  bool Ready(int until) { return Fill(until, until < 0 ? 0 : -1); }

 private:
  struct Line {
    int64_t number;
    std::string text;
    bool too_long;
  };

  // Reads until there is a line, or the end (true); or until the timeout, or
  // until `until` is readable.
  bool Fill(int until, int timeout_ms) {
    while (lines_.empty() && !ended_) {
      pollfd files[] = {{file_, POLLIN, 0}, {until, POLLIN, 0}};
      const int found = poll(files, 2, timeout_ms);
      if (found < 0 && errno == EINTR) continue;
      if (found >= 0 && files[0].revents == 0) return false;
      ReadPart();  // which also reports the file's error
    }
    return true;
  }

  void ReadPart() {
    const ssize_t bytes = read(file_, part_.data(), part_.size());
    if (bytes < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (bytes < 0) status_ = FileError(errno, "read", "the input");
    if (bytes > 0) return scanner_.Append({part_.data(), size_t(bytes)});
    scanner_.Finish();
    ended_ = true;
  }

  const int file_;
  const bool owned_;
  const LineFormat format_;
  std::string part_ = std::string(kPartBytes, '\0');
  LineScanner scanner_{
      kMaxLineBytes, [this](const ScannedLine& line) {
        lines_.push_back({line.number, std::string(line.text), line.too_long});
      }};
  std::deque<Line> lines_;
  bool ended_ = false;
  absl::Status status_;
};

LineTranslator::Source SourceOf(std::shared_ptr<FileLines> lines) {
  return {[lines] { return lines->Next(); },
          [lines](int until) { return lines->Ready(until); }};
}

}  // namespace

LineTranslator::Source LinesOfTexts(std::vector<std::string> texts,
                                    LineFormat format) {
  return {[texts = std::move(texts), format = std::move(format),
           next = size_t{
               0}]() mutable -> absl::StatusOr<std::optional<SourceLine>> {
    if (next == texts.size()) return std::optional<SourceLine>();
    const size_t i = next++;
    return std::optional(ToLine(static_cast<int64_t>(i) + 1, texts[i], format));
  }};
}

LineTranslator::Source LinesOfFile(int file, LineFormat format) {
  return SourceOf(
      std::make_shared<FileLines>(file, /*owned=*/false, std::move(format)));
}

absl::StatusOr<LineTranslator::Source> LinesOfPath(const std::string& path,
                                                   LineFormat format) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return FileError(errno, "open", path);
  auto lines =
      std::make_shared<FileLines>(file, /*owned=*/true, std::move(format));
  struct stat status;
  if (fstat(file, &status) == 0 && S_ISDIR(status.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": is a directory"));
  }
  return SourceOf(std::move(lines));
}

}  // namespace gshard
