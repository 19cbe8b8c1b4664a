#include "services/trace/span_exporter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/services/trace/fake_collector.h"

namespace gshard {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

Span Named(int i) { return {.name = absl::StrCat(i)}; }

class SpanExporterTest : public ::testing::Test {
 protected:
  // Options that send full batches only and retry at once.
  SpanExporterOptions Options(const std::string& endpoint) const {
    return {.endpoint = endpoint,
            .resource = {"gshard-router", "router-1", "0.1.0"},
            .queue = {.max_spans = 8,
                      .batch = 4,
                      .max_wait = milliseconds(3600'000)},
            .first_delay = milliseconds(1),
            .timeout = milliseconds(20'000)};
  }
  SpanExporterOptions Options() const { return Options(collector_.endpoint()); }
  void Make(const SpanExporterOptions& options) {
    exporter_ = std::make_unique<SpanExporter>(options, counts_);
  }
  void Add(int spans) {
    for (int i = 0; i < spans; ++i) exporter_->Add(Named(added_++));
  }

  FakeCollector collector_;
  Metrics metrics_{"router", "0.1.0"};
  const SpanMetrics counts_{metrics_};
  std::unique_ptr<SpanExporter> exporter_;
  int added_ = 0;
};

TEST_F(SpanExporterTest, FullBatchesGoAtOnce) {
  Make(Options());
  Add(4);
  collector_.AwaitSpans(4);
  Add(5);
  const auto spans = collector_.AwaitSpans(8);
  ASSERT_EQ(spans.size(), 8u);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(spans[i].name, absl::StrCat(i));
  const auto requests = collector_.Requests();
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0].method, "POST");
  EXPECT_EQ(requests[0].path, "/v1/traces");
  EXPECT_EQ(requests[0].header("content-type"), "application/json");
  exporter_->Shutdown();
  EXPECT_EQ(collector_.Spans().size(), 9u);
  EXPECT_EQ(counts_.exported.Value(), 9);
}

TEST_F(SpanExporterTest, FewSpansGoAfterAWhile) {
  SpanExporterOptions options = Options();
  options.queue.max_wait = milliseconds(20);
  Make(options);
  Add(1);
  EXPECT_EQ(collector_.AwaitSpans(1).size(), 1u);
}

TEST_F(SpanExporterTest, FaultsThatPassCostNothing) {
  std::atomic<int> asked = 0;
  collector_.SetAnswer([&]() -> FakeHttpAnswer {
    switch (asked++) {
      case 0:
        return {503};
      case 1:
        return {.delivery = FakeHttpAnswer::Delivery::kReset};
      case 2:
        return {429};
      default:
        return {};
    }
  });
  Make(Options());
  Add(4);
  EXPECT_EQ(collector_.AwaitSpans(4).size(), 4u);
  EXPECT_EQ(asked, 4);
  exporter_->Shutdown();
  EXPECT_EQ(counts_.exported.Value(), 4);
  EXPECT_EQ(counts_.unreachable.Value(), 0);
}

TEST_F(SpanExporterTest, SomeFaultsPassAndOthersDoNot) {
  HttpResponse response;
  for (const int code : {429, 502, 503, 504}) {
    response.code = code;
    EXPECT_TRUE(MayBeTakenLater(response)) << code;
  }
  for (const int code : {301, 400, 401, 404, 413, 500, 501}) {
    response.code = code;
    EXPECT_FALSE(MayBeTakenLater(response)) << code;
  }
  response.transfer = absl::UnavailableError("reset");
  EXPECT_TRUE(MayBeTakenLater(response));
}

TEST_F(SpanExporterTest, ACollectorIsGivenTheTimeThatItAsksFor) {
  const absl::Time now = absl::FromUnixSeconds(784111777);
  const auto pause = [&](const std::string& retry_after) {
    HttpResponse response;
    if (!retry_after.empty()) response.headers["retry-after"] = retry_after;
    return RetryPause(response, milliseconds(250), milliseconds(30'000), now);
  };
  EXPECT_EQ(pause(""), milliseconds(250));
  EXPECT_EQ(pause("soon"), milliseconds(250));
  EXPECT_EQ(pause("0"), milliseconds(250));
  EXPECT_EQ(pause("7"), milliseconds(7'000));
  EXPECT_EQ(pause("86400"), milliseconds(30'000));
  EXPECT_EQ(pause(std::string(400, '9')), milliseconds(30'000));
  EXPECT_EQ(pause("Sun, 06 Nov 1994 08:49:47 GMT"), milliseconds(10'000));
  EXPECT_EQ(pause("Sun, 06 Nov 1994 08:49:27 GMT"), milliseconds(250));
}

TEST_F(SpanExporterTest, ItIsNotAskedAgainBeforeButForTheEnd) {
  std::atomic<int> asked = 0;
  collector_.SetAnswer([&] {
    return asked++ == 0 ? FakeHttpAnswer{429, "", {"Retry-After: 3600"}}
                        : FakeHttpAnswer{};
  });
  SpanExporterOptions options = Options();
  options.max_retry_after = std::chrono::hours(1);
  Make(options);
  Add(4);
  collector_.AwaitRequests(1);
  const Clock::time_point start = Clock::now();
  exporter_->Shutdown();
  EXPECT_LT(Clock::now() - start, std::chrono::minutes(10));
  EXPECT_EQ(counts_.exported.Value(), 4);

  options.max_retry_after = milliseconds(50);
  asked = 0;
  std::atomic<Clock::time_point> first, second;
  collector_.SetAnswer([&] {
    (asked++ == 0 ? first : second) = Clock::now();
    return asked == 1 ? FakeHttpAnswer{503, "", {"Retry-After: 3600"}}
                      : FakeHttpAnswer{};
  });
  Make(options);
  Add(4);
  collector_.AwaitSpans(8);
  EXPECT_GE(second.load() - first.load(), milliseconds(50));
}

TEST_F(SpanExporterTest, HeadersGoWithEachRequestAndIntoNoLog) {
  SpanExporterOptions options = Options();
  options.headers = {"api-key: s3cret", "X-Scope-OrgID: team a"};
  collector_.SetAnswer([] { return FakeHttpAnswer{401}; });
  ::testing::internal::CaptureStderr();
  Make(options);
  Add(4);
  collector_.AwaitRequests(1);
  exporter_->Shutdown();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::AllOf(::testing::HasSubstr("HTTP 401"),
                               ::testing::Not(::testing::HasSubstr("s3cret"))));
  const auto requests = collector_.Requests();
  ASSERT_EQ(requests.size(), 1u);
  EXPECT_EQ(requests[0].header("api-key"), "s3cret");
  EXPECT_EQ(requests[0].header("x-scope-orgid"), "team a");
  EXPECT_EQ(requests[0].header("content-type"), "application/json");
}

TEST_F(SpanExporterTest, WhatIsRefusedIsNotSentAgain) {
  collector_.SetAnswer([] { return FakeHttpAnswer{400}; });
  Make(Options());
  Add(8);
  collector_.AwaitRequests(2);
  exporter_->Shutdown();
  EXPECT_EQ(collector_.Requests().size(), 2u);
  EXPECT_EQ(counts_.refused.Value(), 8);
  EXPECT_EQ(counts_.exported.Value(), 0);
}

// It answers that it has taken the batch, but for some spans.
TEST_F(SpanExporterTest, WhatIsRefusedOfABatchIsNotExported) {
  collector_.SetAnswer([] {
    return FakeHttpAnswer{
        .body = R"({"partialSuccess":{"rejectedSpans":"3","errorMessage":)"
                R"("attributes are too long"}})"};
  });
  ::testing::internal::CaptureStderr();
  Make(Options());
  Add(4);
  collector_.AwaitRequests(1);
  exporter_->Shutdown();
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      ::testing::AllOf(::testing::HasSubstr("\"spans_lost\":3"),
                       ::testing::HasSubstr("attributes are too long")));
  EXPECT_EQ(collector_.Requests().size(), 1u);
  EXPECT_EQ(counts_.refused.Value(), 3);
  EXPECT_EQ(counts_.exported.Value(), 1);
}

// No more than was sent, whatever the answer says.
TEST_F(SpanExporterTest, ACollectorRefusesNoMoreThanItGot) {
  collector_.SetAnswer([] {
    return FakeHttpAnswer{.body = R"({"partialSuccess":{"rejectedSpans":9}})"};
  });
  Make(Options());
  Add(4);
  collector_.AwaitRequests(1);
  exporter_->Shutdown();
  EXPECT_EQ(counts_.refused.Value(), 4);
  EXPECT_EQ(counts_.exported.Value(), 0);
}

TEST_F(SpanExporterTest, ADeadCollectorIsOneLineAMinute) {
  std::string gone;
  { gone = FakeCollector().endpoint(); }
  ::testing::internal::CaptureStderr();
  Make(Options(gone));
  for (const int lost : {4, 8, 12}) {
    Add(4);
    while (counts_.unreachable.Value() < lost) std::this_thread::yield();
  }
  exporter_->Shutdown();
  const std::string lines = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(lines, ::testing::HasSubstr("\"spans_lost\":4"));
  EXPECT_EQ(lines.find('\n'), lines.size() - 1) << lines;
  EXPECT_EQ(counts_.unreachable.Value(), 12);
}

TEST_F(SpanExporterTest, ASlowCollectorDelaysNobody) {
  std::promise<void> go;
  const auto gone = go.get_future().share();
  collector_.SetAnswer([gone] {
    gone.wait();
    return FakeHttpAnswer{};
  });
  Make(Options());
  Add(4);
  collector_.AwaitRequests(1);
  // While a batch is in flight, the queue has room for 8 more spans.
  Add(8);
  EXPECT_EQ(counts_.queue_full.Value(), 0);
  Add(5);
  EXPECT_EQ(counts_.queue_full.Value(), 5);
  go.set_value();
  const auto spans = collector_.AwaitSpans(12);
  ASSERT_EQ(spans.size(), 12u);
  EXPECT_EQ(spans.back().name, "11");
}

TEST_F(SpanExporterTest, TheLastSpansGoAtTheEnd) {
  Make(Options());
  Add(7);
  collector_.AwaitSpans(4);
  exporter_->Shutdown();
  EXPECT_EQ(collector_.Spans().size(), 7u);
  Add(4);
  exporter_->Shutdown();
  EXPECT_EQ(collector_.Spans().size(), 7u);
  EXPECT_EQ(counts_.shutdown.Value(), 0);
}

TEST_F(SpanExporterTest, TheEndWaitsForNobodyForLong) {
  std::promise<void> go;
  const auto gone = go.get_future().share();
  collector_.SetAnswer([gone] {
    gone.wait();
    return FakeHttpAnswer{};
  });
  SpanExporterOptions options = Options();
  options.timeout = milliseconds(50);
  Make(options);
  Add(8);
  collector_.AwaitRequests(1);
  const Clock::time_point start = Clock::now();
  exporter_->Shutdown();
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(10));
  EXPECT_EQ(counts_.exported.Value(), 0);
  EXPECT_EQ(counts_.shutdown.Value() + counts_.unreachable.Value(), 8);
  go.set_value();
}

}  // namespace
}  // namespace gshard
