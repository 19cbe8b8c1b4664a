#include "services/trace/otlp_json.h"

#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "services/base/log.h"

namespace gshard {
namespace {

// Quotes like logs.
std::string Quote(absl::string_view text) { return LogField("", text).json; }

std::string Attribute(absl::string_view key, const Span::Value& value) {
  const auto* const number = std::get_if<int64_t>(&value);
  return absl::StrCat("{\"key\":", Quote(key), ",\"value\":{",
                      number == nullptr
                          ? absl::StrCat("\"stringValue\":",
                                         Quote(std::get<std::string>(value)))
                          : absl::StrCat("\"intValue\":\"", *number, "\""),
                      "}}");
}

std::string SpanJson(const Span& span) {
  std::string json = absl::StrCat("{\"traceId\":", Quote(span.trace_id),
                                  ",\"spanId\":", Quote(span.span_id));
  if (!span.parent_id.empty()) {
    absl::StrAppend(&json, ",\"parentSpanId\":", Quote(span.parent_id));
  }
  absl::StrAppend(
      &json, ",\"name\":", Quote(span.name),
      ",\"kind\":", static_cast<int>(span.kind), ",\"startTimeUnixNano\":\"",
      span.start_nanos, "\",\"endTimeUnixNano\":\"", span.end_nanos,
      "\",\"attributes\":[",
      absl::StrJoin(span.attributes, ",",
                    [](std::string* out, const auto& attribute) {
                      out->append(Attribute(attribute.first, attribute.second));
                    }),
      "]");
  if (!span.error.empty()) {
    absl::StrAppend(
        &json, ",\"status\":{\"code\":2,\"message\":", Quote(span.error), "}");
  }
  return json + "}";
}

}  // namespace

std::string OtlpJson(const SpanResource& resource,
                     absl::Span<const Span> spans) {
  return absl::StrCat(
      "{\"resourceSpans\":[{\"resource\":{\"attributes\":[",
      Attribute("service.name", resource.service), ",",
      Attribute("service.instance.id", resource.instance), ",",
      Attribute("service.version", resource.version),
      "]},\"scopeSpans\":[{\"scope\":{\"name\":\"gshard\"},\"spans\":[",
      absl::StrJoin(spans, ",",
                    [](std::string* out, const Span& span) {
                      out->append(SpanJson(span));
                    }),
      "]}]}]}");
}

OtlpRefusal ParseOtlpAnswer(absl::string_view body) {
  // Much more than a collector says; the parser's memory is that of the text.
  constexpr size_t kMaxAnswer = 64 << 10;
  OtlpRefusal refusal;
  if (body.size() > kMaxAnswer) return refusal;
  const auto answer = nlohmann::json::parse(body.begin(), body.end(), nullptr,
                                            /*allow_exceptions=*/false);
  if (!answer.is_object() || !answer.contains("partialSuccess")) return refusal;
  const auto& partial = answer["partialSuccess"];
  if (!partial.is_object()) return refusal;
  // 64-bit numbers are text in JSON of protocol buffers; readers take both.
  const auto count = partial.find("rejectedSpans");
  if (count == partial.end()) return refusal;
  if (count->is_number_integer()) {
    refusal.spans = count->get<int64_t>();
  } else if (!count->is_string() ||
             !absl::SimpleAtoi(count->get_ref<const std::string&>(),
                               &refusal.spans)) {
    refusal.spans = 0;
  }
  const auto why = partial.find("errorMessage");
  if (why != partial.end() && why->is_string()) {
    refusal.why = why->get_ref<const std::string&>().substr(0, 200);
  }
  return refusal;
}

}  // namespace gshard
