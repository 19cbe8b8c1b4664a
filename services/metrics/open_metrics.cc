#include "services/metrics/open_metrics.h"

#include <charconv>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "services/base/check.h"

namespace gshard {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricType;

// The shortest text that parses to the same bits, with a point or an exponent:
// as values of the label "le", 1 and 1.0 would be two series.
std::string Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  char text[32];
  const auto end =
      std::to_chars(text, std::end(text), value, std::chars_format::general)
          .ptr;
  std::string number(text, end);
  if (number.find_first_of(".e") == number.npos) number += ".0";
  return number;
}

std::string Escape(absl::string_view text) {
  return absl::StrReplaceAll(text,
                             {{"\\", "\\\\"}, {"\n", "\\n"}, {"\"", "\\\""}});
}

std::string Label(absl::string_view name, absl::string_view value) {
  return absl::StrCat(name, "=\"", Escape(value), "\"");
}

// "{a="b",c="d"}", or nothing without labels; `last` is another label unless
// empty.
std::string Labels(const ClientMetric& metric, const std::string& last = "") {
  std::vector<std::string> labels;
  for (const auto& label : metric.label) {
    labels.push_back(Label(label.name, label.value));
  }
  if (!last.empty()) labels.push_back(last);
  if (labels.empty()) return "";
  return absl::StrCat("{", absl::StrJoin(labels, ","), "}");
}

void WriteHistogram(const std::string& name, const ClientMetric& metric,
                    const std::vector<Exemplar>& exemplars, std::string* out) {
  const auto& buckets = metric.histogram.bucket;
  for (size_t i = 0; i < buckets.size(); ++i) {
    absl::StrAppend(out, name, "_bucket",
                    Labels(metric, Label("le", Number(buckets[i].upper_bound))),
                    " ", buckets[i].cumulative_count);
    if (i < exemplars.size() && !exemplars[i].trace_id.empty()) {
      const Exemplar& exemplar = exemplars[i];
      const int64_t ms = absl::ToUnixMillis(exemplar.time);
      absl::StrAppend(out, " # {", Label("trace_id", exemplar.trace_id), "} ",
                      Number(exemplar.value), " ",
                      absl::StrFormat("%d.%03d", ms / 1000, ms % 1000));
    }
    out->push_back('\n');
  }
  absl::StrAppend(out, name, "_count", Labels(metric), " ",
                  metric.histogram.sample_count, "\n", name, "_sum",
                  Labels(metric), " ", Number(metric.histogram.sample_sum),
                  "\n");
}

void WriteFamily(const prometheus::MetricFamily& family,
                 const ExemplarsOf& exemplars_of, std::string* out) {
  absl::string_view name = family.name;
  const char* type = "gauge";
  switch (family.type) {
    case MetricType::Counter:
      CHECK(absl::ConsumeSuffix(&name, "_total"));
      type = "counter";
      break;
    case MetricType::Gauge:
      if (absl::ConsumeSuffix(&name, "_info")) type = "info";
      break;
    case MetricType::Histogram:
      type = "histogram";
      break;
    default:
      CHECK(false);
  }
  absl::StrAppend(out, "# TYPE ", name, " ", type, "\n");
  for (const char* unit : {"seconds", "bytes", "ratio"}) {
    if (absl::EndsWith(name, absl::StrCat("_", unit))) {
      absl::StrAppend(out, "# UNIT ", name, " ", unit, "\n");
    }
  }
  absl::StrAppend(out, "# HELP ", name, " ", Escape(family.help), "\n");
  for (const ClientMetric& metric : family.metric) {
    if (family.type == MetricType::Histogram) {
      WriteHistogram(family.name, metric, exemplars_of(family.name, metric),
                     out);
      continue;
    }
    absl::StrAppend(
        out, family.name, Labels(metric), " ",
        Number(family.type == MetricType::Counter ? metric.counter.value
                                                  : metric.gauge.value),
        "\n");
  }
}

}  // namespace

std::string OpenMetricsText(
    const std::vector<prometheus::MetricFamily>& families,
    const ExemplarsOf& exemplars_of) {
  std::string text;
  for (const prometheus::MetricFamily& family : families) {
    WriteFamily(family, exemplars_of, &text);
  }
  return text + "# EOF\n";
}

}  // namespace gshard
