#include "services/metrics/metrics_format.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace gshard {
namespace {

// A media range of "Accept", or a coding of "Accept-Encoding", with the
// parameters that matter here.
struct Range {
  std::string type;
  std::string version;
  double q = 1;
};

std::string Lower(absl::string_view text) {
  return absl::AsciiStrToLower(absl::StripAsciiWhitespace(text));
}

// If q is invalid, it becomes 0, so that the range accepts nothing.
Range ParseRange(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ';');
  Range range;
  range.type = Lower(parts[0]);
  for (size_t i = 1; i < parts.size(); ++i) {
    const std::pair<absl::string_view, absl::string_view> parameter =
        absl::StrSplit(parts[i], absl::MaxSplits('=', 1));
    const std::string name = Lower(parameter.first);
    const std::string value = Lower(parameter.second);
    if (name == "version") {
      range.version = value;
    } else if (name == "q" && (!absl::SimpleAtod(value, &range.q) ||
                               !(0 <= range.q && range.q <= 1))) {
      range.q = 0;
    }
  }
  return range;
}

}  // namespace

MetricsFormat AcceptedFormat(absl::string_view accept) {
  constexpr absl::string_view kTextRanges[] = {"*/*", "text/*", "text/plain"};
  double open_metrics = 0;
  double text = 0;
  // The most specific range that matches text/plain decides.
  const absl::string_view* closest = std::begin(kTextRanges);
  for (const absl::string_view part : absl::StrSplit(accept, ',')) {
    const Range range = ParseRange(part);
    if (range.type == "application/openmetrics-text") {
      if (range.version.empty() || range.version == "1.0.0") {
        open_metrics = std::max(open_metrics, range.q);
      }
      continue;
    }
    const auto* const found =
        std::find(closest, std::end(kTextRanges), range.type);
    if (found == std::end(kTextRanges) ||
        !(range.version.empty() || range.version == "0.0.4")) {
      continue;
    }
    text = found == closest ? std::max(text, range.q) : range.q;
    closest = found;
  }
  return open_metrics > 0 && open_metrics >= text ? MetricsFormat::kOpenMetrics
                                                  : MetricsFormat::kText;
}

bool AcceptsGzip(absl::string_view accept_encoding) {
  double gzip = 0;
  bool named = false;  // which overrides what "*" says
  for (const absl::string_view part : absl::StrSplit(accept_encoding, ',')) {
    const Range range = ParseRange(part);
    if (range.type == "gzip" || (range.type == "*" && !named)) gzip = range.q;
    named = named || range.type == "gzip";
  }
  return gzip > 0;
}

absl::string_view ContentType(MetricsFormat format) {
  return format == MetricsFormat::kText
             ? "text/plain; version=0.0.4; charset=utf-8"
             : "application/openmetrics-text; version=1.0.0; charset=utf-8";
}

}  // namespace gshard
