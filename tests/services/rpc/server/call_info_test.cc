#include "services/rpc/server/call_info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "services/checkpoint/sha256.h"
#include "services/rpc/wire/trace_scope.h"
#include "tests/services/rpc/secure_server.h"
#include "tests/services/trace/fake_collector.h"
#include "tests/testing/certificates.h"

namespace gshard {
namespace {

using ::testing::_;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

constexpr char kParent[] =
    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

class CallInfoTest : public ::testing::Test {
 protected:
  CallInfoTest()
      : server_({.auth_file = files_.Write(
                     "callers", absl::StrCat("shop token ", Sha256("canary-1"),
                                             " translate:m*\n"))}),
        channel_(*server_.Channel(
            {.token_file = files_.Write("token", "canary-1")})) {}

  // Calls with metadata. Returns the answer's request id; sets `status`.
  std::string Call(const std::multimap<std::string, std::string>& metadata,
                   const std::string& model = "m",
                   absl::Status* status = nullptr) {
    grpc::ClientContext context;
    for (const auto& [key, value] : metadata) context.AddMetadata(key, value);
    const absl::Status end = SecureServer::CallWith(channel_, context, model);
    if (status != nullptr) *status = end;
    const auto& answer = context.GetServerInitialMetadata();
    const auto found = answer.find("x-request-id");
    return found == answer.end()
               ? ""
               : std::string(found->second.data(), found->second.size());
  }

  const Certificates files_{{"client:nobody"}};
  SecureServer server_;
  const std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(CallInfoTest, EveryAnswerHasARequestId) {
  const std::string id = Call({});
  EXPECT_THAT(id, MatchesRegex("[0-9a-f]{32}"));
  EXPECT_EQ(server_.service().last().request_id, id);
  EXPECT_NE(Call({}), id);
  absl::Status status;
  EXPECT_THAT(Call({}, "fail", &status), MatchesRegex("[0-9a-f]{32}"));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound, _));
}

TEST_F(CallInfoTest, TheClientsIdIsKeptIfItIsSane) {
  EXPECT_EQ(Call({{"x-request-id", "order-7"}}), "order-7");
  for (const std::string& bad :
       {std::string("a b"), std::string("{\"a\":1}"), std::string(129, 'a')}) {
    EXPECT_THAT(Call({{"x-request-id", bad}}), MatchesRegex("[0-9a-f]{32}"));
  }
  EXPECT_THAT(Call({{"x-request-id", "a"}, {"x-request-id", "b"}}),
              MatchesRegex("[0-9a-f]{32}"));
}

TEST_F(CallInfoTest, TheTraceGoesOn) {
  Call({{"traceparent", kParent}, {"tracestate", "v=1"}});
  const TraceContext trace = server_.service().last().trace;
  EXPECT_EQ(trace.trace_id, "0af7651916cd43dd8448eb211c80319c");
  EXPECT_NE(trace.span_id, "b7ad6b7169203331");
  EXPECT_EQ(trace.state, "v=1");
  EXPECT_EQ(trace.flags, 1);
  Call({{"traceparent", "00-garbage"}, {"tracestate", "v=1"}});
  EXPECT_NE(server_.service().last().trace.trace_id, trace.trace_id);
  EXPECT_EQ(server_.service().last().trace.state, "");
}

TEST_F(CallInfoTest, CallsHandOnTheTraceOfTheirThread) {
  const TraceContext trace = ContinueTrace(kParent, "v=1");
  {
    const TraceScope scope(trace);
    Call({});
  }
  EXPECT_EQ(server_.service().last().trace.trace_id, trace.trace_id);
  EXPECT_NE(server_.service().last().trace.span_id, trace.span_id);
  EXPECT_EQ(server_.service().last().trace.state, "v=1");
  Call({});
  EXPECT_NE(server_.service().last().trace.trace_id, trace.trace_id);
}

TEST_F(CallInfoTest, SampledCallsAreSpans) {
  FakeCollector collector;
  const auto exporter = std::make_shared<SpanExporter>(
      SpanExporterOptions{.endpoint = collector.endpoint()});
  const Tracer tracer = Tracer::Create();
  tracer.ExportTo(exporter, /*ratio=*/0);
  SecureServer server({}, "127.0.0.1:0", tracer);
  const auto call = [&](const std::string& parent, const std::string& model) {
    grpc::ClientContext context;
    context.AddMetadata("traceparent", parent);
    (void)SecureServer::CallWith(*server.Channel({}), context, model);
    return server.service().last().trace.span_id;
  };
  const std::string good = call(kParent, "canary");
  const std::string bad = call(kParent, "fail");
  std::string unsampled = kParent;
  unsampled.back() = '0';
  call(unsampled, "canary");
  const auto spans = collector.AwaitSpans(2);
  exporter->Shutdown();
  ASSERT_EQ(collector.Spans().size(), 2u);
  for (const CollectedSpan& span : spans) {
    EXPECT_EQ(span.trace_id, "0af7651916cd43dd8448eb211c80319c");
    EXPECT_EQ(span.parent_id, "b7ad6b7169203331");
    EXPECT_EQ(span.kind, SpanKind::kServer);
    EXPECT_EQ(span.name, "gshard.v1.TranslationService/Translate");
  }
  EXPECT_EQ(spans[0].span_id, good);
  EXPECT_EQ(spans[0].attribute("rpc.grpc.status_code"), "0");
  EXPECT_EQ(spans[1].span_id, bad);
  EXPECT_EQ(spans[1].attribute("rpc.grpc.status_code"), "5");
  EXPECT_THAT(collector.Requests()[0].body, Not(HasSubstr("canary")));
}

TEST_F(CallInfoTest, ClientsCannotSayWhoTheyAre) {
  Call({{"gshard-caller", "admin"},
        {"gshard-grants", "admin"},
        {"gshard-span", kParent}});
  EXPECT_EQ(server_.service().last().caller,
            (Caller{"shop", {{Role::kTranslate, "m*"}}}));
  EXPECT_NE(server_.service().last().trace.trace_id,
            "0af7651916cd43dd8448eb211c80319c");
}

TEST_F(CallInfoTest, OneLineACallWithoutTextAndTokens) {
  ::testing::internal::CaptureStderr();
  Call({{"traceparent", kParent}, {"x-request-id", "order-7"}}, "canary-2");
  Call({{"x-request-id", "order-8"}}, "fail");
  // Refused for its unknown token.
  const auto other =
      *server_.Channel({.token_file = files_.Write("other", "canary-3")});
  const absl::Status refused = SecureServer::CallOn(other, "canary-4");
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kUnauthenticated,
                                Not(HasSubstr("canary"))));
  const std::string lines = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(
      lines,
      AllOf(HasSubstr("\"message\":\"call\",\"method\":"
                      "\"/gshard.v1.TranslationService/Translate\","
                      "\"code\":\"OK\",\"ms\":"),
            HasSubstr("\"request_id\":\"order-7\",\"trace_id\":"
                      "\"0af7651916cd43dd8448eb211c80319c\",\"span_id\":"),
            HasSubstr("\"caller\":\"shop\""),
            HasSubstr("\"code\":\"NOT_FOUND\""), HasSubstr("order-8"),
            HasSubstr("refused a call"), HasSubstr("UNAUTHENTICATED")));
  EXPECT_THAT(lines, Not(HasSubstr("canary")));
}

TEST_F(CallInfoTest, FailuresOfTheServerAreWarningsWithTheirReason) {
  ::testing::internal::CaptureStderr();
  Call({{"x-request-id", "order-9"}}, "break");
  const std::string lines = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(
      lines,
      AllOf(
          HasSubstr("\"severity\":\"WARNING\",\"message\":\"call\",\"method\":"
                    "\"/gshard.v1.TranslationService/Translate\","
                    "\"code\":\"INTERNAL\",\"ms\":"),
          HasSubstr("\"request_id\":\"order-9\""),
          HasSubstr("\"reason\":\"the gate is ajar\"")));
}

// The method is this test's own: lines of a method are limited in the whole
// process.
TEST_F(CallInfoTest, CallersFailuresDoNotCrowdOutThoseOfTheServer) {
  const auto log = [](const absl::Status& status) {
    LogCall("/gshard.v1.TranslationService/Crowded", CallInfo(), status, {});
  };
  ::testing::internal::CaptureStderr();
  for (int64_t i = 0; i < 3 * kCallLinesPerSecond; ++i) {
    log(absl::NotFoundError("no model"));
  }
  log(absl::InternalError("the gate is ajar"));
  const std::string lines = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(lines, AllOf(HasSubstr("\"code\":\"NOT_FOUND\""),
                           HasSubstr("\"reason\":\"the gate is ajar\""),
                           Not(HasSubstr("no model"))));
}

TEST_F(CallInfoTest, ALineHasItsOwnTraceOnceWhoeverElseTheThreadWorksFor) {
  ::testing::internal::CaptureStderr();
  Call({{"traceparent", kParent}}, "batched");
  const std::string line = ::testing::internal::GetCapturedStderr();
  for (const std::string key : {"\"trace_id\":\"", "\"span_id\":\""}) {
    EXPECT_EQ(line.find(key), line.rfind(key)) << line;
  }
  EXPECT_THAT(line, HasSubstr(absl::StrCat(
                        "\"trace_id\":\"0af7651916cd43dd8448eb211c80319c\","
                        "\"span_id\":\"",
                        server_.service().last().trace.span_id, "\"")));
}

TEST_F(CallInfoTest, LinesAreBounded) {
  ::testing::internal::CaptureStderr();
  const auto begin = std::chrono::steady_clock::now();
  constexpr int kCalls = 500;
  for (int i = 0; i < kCalls; ++i) Call({});
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(
      std::chrono::steady_clock::now() - begin);
  const std::string lines = ::testing::internal::GetCapturedStderr();
  int64_t count = 0;
  for (size_t at = lines.find("\"call\""); at != std::string::npos;
       at = lines.find("\"call\"", at + 1)) {
    ++count;
  }
  EXPECT_GT(count, 0);
  EXPECT_LE(count, kCallLinesPerSecond * (seconds.count() + 2));
}

}  // namespace
}  // namespace gshard
