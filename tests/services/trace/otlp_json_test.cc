#include "services/trace/otlp_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace gshard {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Span Served() {
  return {.trace_id = "5b8efff798038103d269b633813fc60c",
          .span_id = "eee19b7ec3c1b174",
          .parent_id = "eee19b7ec3c1b173",
          .name = "gshard.v1.TranslationService/Translate",
          .kind = SpanKind::kServer,
          .start_nanos = 1544712660000000000,
          .end_nanos = 1544712661000000000,
          .attributes = {{"rpc.system", "grpc"}, {"gshard.steps", 7}},
          .error = "UNAVAILABLE"};
}

// Matches opentelemetry-proto's examples/trace.json field by field.
TEST(OtlpJsonTest, IsWhatACollectorTakes) {
  EXPECT_EQ(
      OtlpJson({"gshard-router", "router-1", "0.1.0"},
               {Served(),
                {.trace_id = "5b8efff798038103d269b633813fc60c",
                 .span_id = "eee19b7ec3c1b175",
                 .name = "queue",
                 .start_nanos = 1,
                 .end_nanos = 2}}),
      R"({"resourceSpans":[{"resource":{"attributes":[)"
      R"({"key":"service.name","value":{"stringValue":"gshard-router"}},)"
      R"({"key":"service.instance.id","value":{"stringValue":"router-1"}},)"
      R"({"key":"service.version","value":{"stringValue":"0.1.0"}}]},)"
      R"("scopeSpans":[{"scope":{"name":"gshard"},"spans":[)"
      R"({"traceId":"5b8efff798038103d269b633813fc60c",)"
      R"("spanId":"eee19b7ec3c1b174","parentSpanId":"eee19b7ec3c1b173",)"
      R"("name":"gshard.v1.TranslationService/Translate","kind":2,)"
      R"("startTimeUnixNano":"1544712660000000000",)"
      R"("endTimeUnixNano":"1544712661000000000","attributes":[)"
      R"({"key":"rpc.system","value":{"stringValue":"grpc"}},)"
      R"({"key":"gshard.steps","value":{"intValue":"7"}}],)"
      R"("status":{"code":2,"message":"UNAVAILABLE"}},)"
      R"({"traceId":"5b8efff798038103d269b633813fc60c",)"
      R"("spanId":"eee19b7ec3c1b175","name":"queue","kind":1,)"
      R"("startTimeUnixNano":"1","endTimeUnixNano":"2","attributes":[]})"
      R"(]}]}]})");
}

TEST(OtlpJsonTest, HostileTextStaysInItsPlace) {
  for (const std::string& text :
       {std::string("\"}],\"x\":[{\""), std::string("\\"), std::string("\\\""),
        std::string("a\0b", 3), std::string("\n\r\t\x1f\x7f"),
        std::string("</script>"), std::string("\xC3\xA4\xF0\x9F\x98\x80")}) {
    Span span = Served();
    span.name = text;
    span.attributes = {{text, text}};
    span.error = text;
    const auto json =
        nlohmann::json::parse(OtlpJson({text, text, text}, {span}));
    const auto& resource = json["resourceSpans"][0];
    EXPECT_EQ(resource["resource"]["attributes"][1]["value"]["stringValue"],
              text);
    const auto& parsed = resource["scopeSpans"][0]["spans"][0];
    EXPECT_EQ(parsed["name"], text);
    EXPECT_EQ(parsed["attributes"][0]["key"], text);
    EXPECT_EQ(parsed["attributes"][0]["value"]["stringValue"], text);
    EXPECT_EQ(parsed["status"]["message"], text);
    EXPECT_EQ(parsed["kind"], 2);
  }
}

TEST(OtlpJsonTest, WhatIsNotUtf8IsReplaced) {
  for (const std::string& text :
       {std::string("a\xFFz"), std::string("a\xC3"),
        std::string("\xED\xA0\x80"), std::string("\xC0\x80")}) {
    Span span = Served();
    span.name = text;
    const std::string body = OtlpJson({"s", "i", "v"}, {span});
    EXPECT_THAT(body, HasSubstr("\\ufffd"));
    EXPECT_THAT(body, Not(HasSubstr(text)));
    EXPECT_TRUE(nlohmann::json::accept(body)) << body;
  }
}

TEST(OtlpJsonTest, AnswersSayWhatIsRefused) {
  const OtlpRefusal refusal = ParseOtlpAnswer(
      R"({"partialSuccess":{"rejectedSpans":"2","errorMessage":"too old"}})");
  EXPECT_EQ(refusal.spans, 2);
  EXPECT_EQ(refusal.why, "too old");
  EXPECT_EQ(ParseOtlpAnswer(R"({"partialSuccess":{"rejectedSpans":3}})").spans,
            3);
  for (const std::string& body :
       {std::string(), std::string("{}"), std::string("\x0a\x02\x08\x02"),
        std::string("[]"), std::string("{\"partialSuccess\":"),
        std::string("{\"partialSuccess\":{}}"),
        std::string("{\"partialSuccess\":7}"),
        std::string("{\"partialSuccess\":{\"errorMessage\":\"slow down\"}}"),
        std::string("{\"partialSuccess\":{\"rejectedSpans\":\"many\"}}"),
        std::string("{\"partialSuccess\":{\"rejectedSpans\":null}}"),
        std::string(1 << 20, '[')}) {
    EXPECT_EQ(ParseOtlpAnswer(body).spans, 0) << body.substr(0, 100);
  }
}

}  // namespace
}  // namespace gshard
