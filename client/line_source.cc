#include "client/line_source.h"

#include <istream>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace gshard {
namespace {

absl::StatusOr<std::optional<SourceLine>> ToLine(int64_t number,
                                                 std::string text,
                                                 const LineFormat& format) {
  if (!text.empty() && text.back() == '\r') text.pop_back();
  SourceLine line{number, format.language, std::move(text)};
  if (!format.tab_separated || absl::StripAsciiWhitespace(line.text).empty()) {
    return std::optional<SourceLine>(std::move(line));
  }
  const size_t tab = line.text.find('\t');
  if (tab == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "line ", number, ": expected language<TAB>text, got no tab"));
  }
  line.language = line.text.substr(0, tab);
  const size_t end = line.text.find('\t', tab + 1);
  line.text =
      line.text.substr(tab + 1, end == std::string::npos ? end : end - tab - 1);
  return std::optional<SourceLine>(std::move(line));
}

}  // namespace

LineTranslator::Source LinesOfTexts(std::vector<std::string> texts,
                                    LineFormat format) {
  return [texts = std::move(texts), format = std::move(format),
          next = size_t{
              0}]() mutable -> absl::StatusOr<std::optional<SourceLine>> {
    if (next == texts.size()) return std::optional<SourceLine>();
    const size_t i = next++;
    return ToLine(static_cast<int64_t>(i) + 1, texts[i], format);
  };
}

LineTranslator::Source LinesOfStream(std::istream* stream, LineFormat format) {
  return [stream, format = std::move(format), number = int64_t{0}]() mutable
         -> absl::StatusOr<std::optional<SourceLine>> {
    std::string text;
    if (!std::getline(*stream, text)) {
      if (stream->bad()) {
        return absl::DataLossError(
            absl::StrCat("line ", number + 1, ": reading failed"));
      }
      return std::optional<SourceLine>();
    }
    return ToLine(++number, std::move(text), format);
  };
}

}  // namespace gshard
