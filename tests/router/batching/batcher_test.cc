// Batcher: requests from acceptance to completion, with a fake model.

#include "router/batching/batcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/retry_delay.h"
#include "services/metrics/metrics.h"
#include "services/tensor/buffer.h"
#include "tests/router/batching/batcher_fixture.h"
#include "tests/services/trace/fake_collector.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

class BatcherTest : public BatcherFixture {};

TEST_F(BatcherTest, AnswersInTheOrderOfTheRequestsSentences) {
  Batcher batcher({});
  Call call = Add(batcher, {Sentence(10), Sentence(20, 4), Sentence(30)});
  const Results results = call.results.get();
  ASSERT_OK(results);
  ASSERT_THAT(*results, SizeIs(3));
  EXPECT_THAT((*results)[0][0].ids, ElementsAre(10));
  EXPECT_THAT((*results)[1][0].ids, ElementsAre(5, 20));
  EXPECT_THAT((*results)[2][0].ids, ElementsAre(30));
  EXPECT_EQ(batcher.requests(), 0);
}

TEST_F(BatcherTest, SentencesJoinWhatRunsBetweenSteps) {
  model_->SetSteps(3);
  model_->Hold();
  Batcher batcher({.batch = {.max_rows = 4}});  // one caller gets 3
  Call first = Add(batcher, {Sentence(10)});
  model_->WaitForSteps(1);
  Call second = Add(batcher, {Sentence(20), Sentence(21)});
  Call third = Add(batcher, {Sentence(30)});
  EXPECT_EQ(batcher.queued_sentences(), 3);
  EXPECT_EQ(batcher.queued_tokens(), 3 + 3 + 3);
  EXPECT_EQ(batcher.running_sentences(), 1);
  model_->Release();
  EXPECT_OK(first.results.get());
  EXPECT_OK(second.results.get());
  EXPECT_OK(third.results.get());
  EXPECT_THAT(model_->steps(),
              ElementsAre(ElementsAre(10), ElementsAre(10, 20, 30),
                          ElementsAre(10, 20, 30), ElementsAre(20, 30, 21),
                          ElementsAre(21), ElementsAre(21)));
}

TEST_F(BatcherTest, SpansSayWhereTheTimeOfARequestWent) {
  FakeCollector collector;
  const auto exporter = std::make_shared<SpanExporter>(
      SpanExporterOptions{.endpoint = collector.endpoint()});
  const Tracer tracer = Tracer::Create();
  tracer.ExportTo(exporter, /*ratio=*/1);
  const TraceContext done = tracer.Sampled(NewTrace());
  const TraceContext cancelled = tracer.Sampled(NewTrace());
  model_->SetSteps(3);
  model_->Hold();
  {
    Batcher batcher({.batch = {.max_rows = 1}, .tracer = tracer});
    Call first =
        AddFor(model_, batcher, {Sentence(10), Sentence(11)}, hours(1), done);
    Call second = AddFor(model_, batcher, {Sentence(20)}, hours(1), cancelled);
    Call third = AddFor(model_, batcher, {Sentence(30)}, hours(1), NewTrace());
    model_->WaitForSteps(1);
    batcher.Cancel(*second.id);
    model_->Release();
    EXPECT_OK(first.results.get());
    EXPECT_OK(third.results.get());
  }
  exporter->Shutdown();
  std::vector<std::string> seen;
  for (const CollectedSpan& span : collector.Spans()) {
    const bool is_done = span.trace_id == done.trace_id;
    seen.push_back(absl::StrCat(is_done ? "done " : "cancelled ", span.name,
                                " ", span.error));
    EXPECT_EQ(span.parent_id, is_done ? done.span_id : cancelled.span_id);
    if (span.name != "decode") continue;
    EXPECT_EQ(span.attribute("gshard.sentences"), "2");
    EXPECT_EQ(span.attribute("gshard.steps"), "3");
  }
  EXPECT_THAT(
      seen, UnorderedElementsAre("done queue ", "done encode ", "done encode ",
                                 "done decode ", "cancelled queue CANCELLED"));
}

TEST_F(BatcherTest, AWaitLeadsToTheTraceOfItsRequest) {
  const TraceContext sampled = ParseTraceparent(
      "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01");
  Metrics metrics("router", "1");
  model_->Hold();
  Batcher batcher({.batch = {.max_rows = 1}}, RouterMetrics(metrics));
  Call first = Add(batcher, {Sentence(10)});
  model_->WaitForSteps(1);
  Call second = AddFor(model_, batcher, {Sentence(20)}, hours(1), sampled);
  model_->Release();
  EXPECT_OK(first.results.get());
  EXPECT_OK(second.results.get());
  EXPECT_THAT(
      metrics.Serialize(MetricsFormat::kOpenMetrics),
      ContainsRegex("gshard_queue_duration_seconds_bucket[^\n]* # "
                    "\\{trace_id=\"0123456789abcdef0123456789abcdef\"\\}"));
}

TEST_F(BatcherTest, SentenceAboveTheBudgetRunsAlone) {
  Batcher batcher({.batch = {.max_rows = 1, .max_encode_tokens = 1}});
  SourceSentence wide = Sentence(10);
  wide.options.beam_size = 4;
  Call call = Add(batcher, {wide, Sentence(20)});
  EXPECT_OK(call.results.get());
  EXPECT_THAT(model_->steps(), ElementsAre(ElementsAre(10), ElementsAre(20)));
}

TEST_F(BatcherTest, SentenceAboveTheCacheIsRefused) {
  Batcher batcher({.batch = {.max_positions = 30}});
  SourceSentence wide = Sentence(10);
  wide.options.beam_size = 4;
  EXPECT_THAT(Add(batcher, {Sentence(20), wide}).id,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("sentences[1]: the source and the beam at its "
                                 "longest have 31 positions, at most 30")));
  wide.options.max_length = 6;
  EXPECT_OK(Add(batcher, {wide}).results.get());
}

TEST_F(BatcherTest, ModelsTakeTurns) {
  const auto other = std::make_shared<FakeModel>("other@1");
  model_->SetSteps(2);
  model_->Hold();
  Batcher batcher({});
  Call first = Add(batcher, {Sentence(10)});
  model_->WaitForSteps(1);
  Call second = Add(batcher, {Sentence(20)});
  Call third = AddFor(other, batcher, {Sentence(30)});
  model_->ReleaseStep();
  model_->ReleaseStep();
  EXPECT_OK(third.results.get());  // while the first model still runs
  model_->Release();
  EXPECT_OK(first.results.get());
  EXPECT_OK(second.results.get());
  EXPECT_THAT(other->steps(), ElementsAre(ElementsAre(30)));
}

TEST_F(BatcherTest, ADocumentGivesWayToASentence) {
  model_->Hold();
  Batcher batcher({.batch = {.max_rows = 1}});
  Call document =
      Add(batcher, {Sentence(10), Sentence(11), Sentence(12), Sentence(13)});
  model_->WaitForSteps(1);
  Call sentence = Add(batcher, {Sentence(20)});
  model_->Release();
  EXPECT_OK(document.results.get());
  EXPECT_OK(sentence.results.get());
  EXPECT_THAT(model_->steps(),
              ElementsAre(ElementsAre(10), ElementsAre(11), ElementsAre(20),
                          ElementsAre(12), ElementsAre(13)));
}

TEST_F(BatcherTest, FullQueueRefusesUntilThereIsRoom) {
  model_->Hold();
  Batcher batcher(
      {.admission = {.max_queued_tokens = 9, .max_queued_sentences = 3}});
  Call running = Add(batcher, {Sentence(10)});
  model_->WaitForSteps(1);
  Call waiting = Add(batcher, {Sentence(20), Sentence(21)});
  EXPECT_THAT(Add(batcher, {Sentence(30, 4)}).id,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("2 sentences and 6 tokens wait")));
  EXPECT_THAT(Add(batcher, {Sentence(30, 1 + 1), Sentence(31, 2)}).id,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("the queue is full")));
  batcher.Cancel(*waiting.id);
  EXPECT_THAT(waiting.results.get(),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("client")));
  EXPECT_EQ(batcher.queued_sentences(), 0);
  EXPECT_EQ(batcher.queued_tokens(), 0);
  Call later = Add(batcher, {Sentence(30, 4)});
  model_->Release();
  EXPECT_OK(running.results.get());
  EXPECT_OK(later.results.get());
}

TEST_F(BatcherTest, RequestAboveTheLimitsIsToldToSplit) {
  Batcher batcher(
      {.admission = {.max_queued_tokens = 9, .max_queued_sentences = 3}});
  EXPECT_THAT(
      Add(batcher, {Sentence(10, 10)}).id,
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("split it")));
  SourceSentence beams = Sentence(10, 5);
  beams.options.beam_size = 2;
  EXPECT_THAT(Add(batcher, {beams}).id,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("1 sentences and 10 tokens")));
  EXPECT_EQ(batcher.requests(), 0);
}

TEST_F(BatcherTest, StepStopsWhenNobodyWaitsForIt) {
  model_->SetSteps(3);
  model_->Hold();
  Batcher batcher({});
  Call first = Add(batcher, {Sentence(10), Sentence(11)});
  Call second = Add(batcher, {Sentence(20)});
  model_->WaitForSteps(1);
  model_->ReleaseStep();
  model_->WaitForSteps(2);

  batcher.Cancel(*first.id);
  EXPECT_THAT(first.results.get(),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("client")));
  batcher.Cancel(*second.id);
  EXPECT_THAT(second.results.get(),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("client")));
  model_->WaitForEnds(2);  // although the model is held
  EXPECT_EQ(batcher.requests(), 0);
  EXPECT_EQ(batcher.queued_sentences(), 0);
  while (batcher.running_sentences() > 0) std::this_thread::yield();
  EXPECT_EQ(model_->steps().size(), 2u);
}

TEST_F(BatcherTest, ACancelledSentenceIsInNoFurtherStep) {
  model_->SetSteps(3);
  model_->Hold();
  Batcher batcher({});
  Call before = Add(batcher, {Sentence(1)});
  model_->WaitForSteps(1);
  Call first = Add(batcher, {Sentence(10)});
  Call second = Add(batcher, {Sentence(20)});
  model_->ReleaseStep();
  model_->WaitForSteps(2);
  batcher.Cancel(*first.id);
  model_->Release();
  EXPECT_OK(before.results.get());
  EXPECT_OK(second.results.get());
  EXPECT_THAT(model_->steps(),
              ElementsAre(ElementsAre(1), ElementsAre(1, 10, 20),
                          ElementsAre(1, 20), ElementsAre(20)));
}

TEST_F(BatcherTest, AnExpiredSentenceIsInNoFurtherStep) {
  model_->SetSteps(3);
  model_->Hold();
  Batcher batcher({});
  Call before = Add(batcher, {Sentence(1)});
  model_->WaitForSteps(1);
  Call late = Add(batcher, {Sentence(10)}, milliseconds(300));
  Call after = Add(batcher, {Sentence(20)});
  model_->ReleaseStep();
  model_->WaitForSteps(2);
  EXPECT_THAT(late.results.get(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("time")));
  model_->Release();
  EXPECT_OK(before.results.get());
  EXPECT_OK(after.results.get());
  const std::vector<std::vector<int32_t>> steps = model_->steps();
  ASSERT_THAT(steps, SizeIs(4));
  EXPECT_THAT(steps[2], ElementsAre(1, 20));
  EXPECT_THAT(steps[3], ElementsAre(20));
}

TEST_F(BatcherTest, WhatCannotBeDoneInTimeCostsNoStep) {
  model_->Hold();
  Batcher batcher({.batch = {.max_rows = 1}});
  Call first = Add(batcher, {Sentence(10)});
  model_->WaitForSteps(1);
  Call late = Add(batcher, {Sentence(20)}, milliseconds(1300));
  Call other = Add(batcher, {Sentence(30)});
  // The first round takes over a second, and half of another is more time than
  // `late` then has.
  Call second = Add(batcher, {Sentence(40)}, milliseconds(1000));
  EXPECT_FALSE(second.results.get().ok());
  model_->Release();
  EXPECT_OK(first.results.get());
  EXPECT_THAT(late.results.get(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("time")));
  EXPECT_OK(other.results.get());
  EXPECT_THAT(model_->steps(), ElementsAre(ElementsAre(10), ElementsAre(30)));
}

TEST_F(BatcherTest, DeadlineEndsWaitingAndRunningRequests) {
  model_->Hold();
  Batcher batcher({});
  Call running = Add(batcher, {Sentence(10)}, milliseconds(20));
  Call waiting = Add(batcher, {Sentence(20)}, milliseconds(1));
  EXPECT_THAT(waiting.results.get(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("time")));
  EXPECT_THAT(running.results.get(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("time")));
  EXPECT_EQ(batcher.requests(), 0);
  EXPECT_EQ(batcher.queued_sentences(), 0);
}

TEST_F(BatcherTest, WhatSentencesHaveCostIsExpectedOfTheirCaller) {
  Metrics metrics("router", "test");
  const RouterMetrics gauges(metrics);
  Batcher batcher({}, gauges);
  model_->SetSteps(6);
  model_->SetRowCost(2.5);
  ASSERT_OK(Add(batcher, {Sentence(1)}).results.get());
  EXPECT_EQ(gauges.highest_rounds.Value(), 2);  // 6 steps for 3 tokens
  EXPECT_EQ(gauges.highest_row_cost.Value(), 2.5);
}

// A sentence that exceeds its expected rounds raises its caller's estimate even
// if it is cancelled before its end.
TEST_F(BatcherTest, ASentenceThatIsNotDoneInTheRoundsItShouldTakeIsLonger) {
  Metrics metrics("router", "test");
  const RouterMetrics gauges(metrics);
  Batcher batcher({}, gauges);
  model_->SetSteps(100);
  model_->Hold();
  Call call = Add(batcher, {Sentence(1)});
  constexpr size_t kRounds = 6;
  for (size_t i = 1; i <= kRounds; ++i) {
    model_->WaitForSteps(i);
    model_->ReleaseStep();
  }
  model_->WaitForSteps(kRounds + 1);
  batcher.Cancel(*call.id);
  while (batcher.running_sentences() > 0) std::this_thread::yield();
  EXPECT_EQ(gauges.highest_rounds.Value(), 2);
}

TEST_F(BatcherTest, SoItIsIfOthersAreThere) {
  Metrics metrics("router", "test");
  const RouterMetrics gauges(metrics);
  Batcher batcher({}, gauges);
  model_->SetSteps(100);
  model_->Hold();
  Call call = Add(batcher, {Sentence(1)});
  model_->WaitForSteps(1);
  Call other = Add(batcher, {Sentence(2)});
  constexpr size_t kRounds = 6;
  for (size_t i = 1; i < kRounds; ++i) {
    model_->ReleaseStep();
    model_->WaitForSteps(i + 1);
  }
  batcher.Cancel(*call.id);
  model_->ReleaseStep();
  model_->WaitForSteps(kRounds + 1);
  EXPECT_EQ(gauges.highest_rounds.Value(), 2);
  model_->Release();
}

TEST_F(BatcherTest, FailureEndsTheRequestsOfTheBatchOnly) {
  Batcher batcher({.batch = {.max_rows = 1}});
  model_->Fail(absl::UnavailableError("worker w0 is lost"));
  EXPECT_THAT(Add(batcher, {Sentence(10)}).results.get(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("w0")));
  model_->Fail(absl::OkStatus());
  EXPECT_OK(Add(batcher, {Sentence(20)}).results.get());
}

TEST_F(BatcherTest, ASentenceThatFailsEndsItsRequestOnly) {
  model_->FailSentence(10, absl::InternalError("not numbers"));
  model_->SetSteps(2);
  model_->Hold();
  Batcher batcher({});
  Call first = Add(batcher, {Sentence(20)});
  model_->WaitForSteps(1);
  Call second = Add(batcher, {Sentence(10)});
  Call third = Add(batcher, {Sentence(30)});
  model_->Release();
  EXPECT_THAT(second.results.get(),
              StatusIs(absl::StatusCode::kInternal, "not numbers"));
  EXPECT_OK(first.results.get());
  EXPECT_OK(third.results.get());
}

TEST_F(BatcherTest, ASentenceThatIsGivenUpEndsItsRequest) {
  Batcher batcher({});
  model_->SetSteps(100);
  model_->LoseExperts();
  SourceSentence strict = Sentence(10);
  strict.options.require_full = true;
  const Results results = Add(batcher, {Sentence(20), strict}).results.get();
  ASSERT_OK(results);
  ASSERT_THAT(*results, SizeIs(2));
  EXPECT_THAT((*results)[0], SizeIs(0));  // not translated for nobody
  ASSERT_THAT((*results)[1], SizeIs(1));
  EXPECT_EQ((*results)[1][0].lost_share, 0.5);
  EXPECT_EQ(batcher.requests(), 0);
}

TEST_F(BatcherTest, WhereWorkersHaveNoRoomTheYoungestAreRefused) {
  model_->SetSteps(2);
  model_->Hold();
  Batcher batcher({});
  Call oldest = Add(batcher, {Sentence(10), Sentence(11)});
  model_->WaitForSteps(1);
  Call second = Add(batcher, {Sentence(20)});
  Call third = Add(batcher, {Sentence(30), Sentence(31)});
  Call youngest = Add(batcher, {Sentence(40)});
  model_->SetRoom(3);
  model_->Release();
  EXPECT_OK(oldest.results.get());
  EXPECT_OK(second.results.get());
  for (Call* refused : {&third, &youngest}) {
    const Results results = refused->results.get();
    EXPECT_THAT(results, StatusIs(absl::StatusCode::kResourceExhausted,
                                  HasSubstr("full")));
    EXPECT_TRUE(RetryDelay(results.status()).has_value());
  }
  // The remaining sentences are decoded from the start.
  EXPECT_THAT(
      model_->steps(),
      ElementsAre(ElementsAre(10, 11), ElementsAre(10, 11, 20, 30, 40, 31),
                  ElementsAre(10, 20, 11), ElementsAre(10, 20, 11)));
  // A lone request is refused as well, without a delay unless the error has
  // one: it may be too much for any worker.
  model_->SetRoom(0);
  const Results lone = Add(batcher, {Sentence(50), Sentence(51)}).results.get();
  EXPECT_THAT(lone, StatusIs(absl::StatusCode::kResourceExhausted, "full"));
  EXPECT_FALSE(RetryDelay(lone.status()).has_value());
  EXPECT_EQ(batcher.requests(), 0);
  EXPECT_EQ(batcher.queued_sentences(), 0);
  EXPECT_EQ(batcher.running_sentences(), 0);
}

TEST_F(BatcherTest, WithoutWorkNothingIsKeptForTensors) {
  model_->Hold();
  Batcher batcher({});
  Call call = Add(batcher, {Sentence(10)});
  model_->WaitForSteps(1);
  { const auto block = AllocateBuffer(1 << 20); }
  EXPECT_GE(GetBufferUsage().cached_bytes, 1 << 20);
  model_->Release();
  EXPECT_OK(call.results.get());
  while (GetBufferUsage().cached_bytes > 0) std::this_thread::yield();
}

TEST_F(BatcherTest, FinishWaitsForWhatWasAccepted) {
  model_->Hold();
  Batcher batcher({});
  Call running = Add(batcher, {Sentence(10)});
  Call waiting = Add(batcher, {Sentence(20)});
  model_->WaitForSteps(1);
  std::future<void> finished = std::async(std::launch::async, [&batcher] {
    batcher.Finish(std::chrono::hours(1));
  });
  while (true) {  // until it refuses
    Call late = Add(batcher, {Sentence(30)});
    if (!late.id.ok()) {
      EXPECT_THAT(late.id, StatusIs(absl::StatusCode::kUnavailable,
                                    HasSubstr("shutting down")));
      break;
    }
    batcher.Cancel(*late.id);
  }
  model_->Release();
  finished.get();
  EXPECT_OK(running.results.get());
  EXPECT_OK(waiting.results.get());
}

TEST_F(BatcherTest, FinishEndsWhatIsNotDoneInTime) {
  model_->Hold();
  Batcher batcher({});
  Call running = Add(batcher, {Sentence(10)});
  Call waiting = Add(batcher, {Sentence(20)});
  batcher.Finish(milliseconds(0));
  for (Call* call : {&running, &waiting}) {
    EXPECT_THAT(call->results.get(), StatusIs(absl::StatusCode::kUnavailable,
                                              HasSubstr("shutting down")));
  }
}

}  // namespace
}  // namespace gshard
