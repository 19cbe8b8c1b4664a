// What becomes of requests between their acceptance and their end.

#include "router/batcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>

#include "tests/router/fake_model.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using Results = absl::StatusOr<std::vector<Hypotheses>>;
using Clock = std::chrono::steady_clock;

class BatcherTest : public ::testing::Test {
 protected:
  // A sentence of `length` tokens, the second of which is `first`.
  static SourceSentence Sentence(int32_t first, size_t length = 3) {
    SourceSentence sentence;
    sentence.ids.assign(length, 5);
    sentence.ids[1] = first;
    sentence.options = {.beam_size = 1, .max_length = 7};
    return sentence;
  }

  struct Call {
    absl::StatusOr<uint64_t> id;
    std::future<Results> results;
  };

  Call Add(Batcher& batcher, std::vector<SourceSentence> sentences,
           Clock::duration timeout = hours(1)) {
    return AddFor(model_, batcher, std::move(sentences), timeout);
  }
  static Call AddFor(std::shared_ptr<TranslationModel> model, Batcher& batcher,
                     std::vector<SourceSentence> sentences,
                     Clock::duration timeout = hours(1)) {
    auto promise = std::make_shared<std::promise<Results>>();
    Call call{.id = 0, .results = promise->get_future()};
    call.id = batcher.Add({.model = std::move(model),
                           .sentences = std::move(sentences),
                           .deadline = Clock::now() + timeout,
                           .done = [promise](Results results) {
                             promise->set_value(std::move(results));
                           }});
    return call;
  }

  const std::shared_ptr<FakeModel> model_ =
      std::make_shared<FakeModel>("tiny@1");
};

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

TEST_F(BatcherTest, FillsBatchesAcrossRequests) {
  model_->Hold();
  Batcher batcher({.max_batch_tokens = 9});
  Call first = Add(batcher, {Sentence(10)});
  model_->WaitForBatches(1);
  Call second = Add(batcher, {Sentence(20), Sentence(21)});
  Call third = Add(batcher, {Sentence(30), Sentence(31, 5)});
  EXPECT_EQ(batcher.queued_sentences(), 4);
  EXPECT_EQ(batcher.queued_tokens(), 3 + 3 + 3 + 5);
  model_->Release();
  EXPECT_OK(first.results.get());
  EXPECT_OK(second.results.get());
  EXPECT_OK(third.results.get());
  // The long one would make 4 x 5 tokens.
  EXPECT_THAT(
      model_->batches(),
      ElementsAre(ElementsAre(10), ElementsAre(20, 21, 30), ElementsAre(31)));
}

TEST_F(BatcherTest, SentenceAboveTheBudgetIsABatch) {
  Batcher batcher({.max_batch_tokens = 1});
  Call call = Add(batcher, {Sentence(10), Sentence(20)});
  EXPECT_OK(call.results.get());
  EXPECT_THAT(model_->batches(), ElementsAre(ElementsAre(10), ElementsAre(20)));
}

TEST_F(BatcherTest, ModelsHaveBatchesOfTheirOwn) {
  const auto other = std::make_shared<FakeModel>("other@1");
  model_->Hold();
  Batcher batcher({});
  Call first = Add(batcher, {Sentence(10)});
  model_->WaitForBatches(1);
  Call second = Add(batcher, {Sentence(20)});
  Call third = AddFor(other, batcher, {Sentence(30)});
  Call fourth = Add(batcher, {Sentence(40)});
  model_->Release();
  for (Call* call : {&first, &second, &third, &fourth}) {
    EXPECT_OK(call->results.get());
  }
  EXPECT_THAT(model_->batches(),
              ElementsAre(ElementsAre(10), ElementsAre(20, 40)));
  EXPECT_THAT(other->batches(), ElementsAre(ElementsAre(30)));
}

TEST_F(BatcherTest, FullQueueRefusesUntilThereIsRoom) {
  model_->Hold();
  Batcher batcher({.max_queued_tokens = 9, .max_queued_sentences = 3});
  Call running = Add(batcher, {Sentence(10)});
  model_->WaitForBatches(1);
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
  Batcher batcher({.max_queued_tokens = 9, .max_queued_sentences = 3});
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

TEST_F(BatcherTest, BatchStopsWhenNobodyWaitsForIt) {
  const auto blocker = std::make_shared<FakeModel>("blocker@1");
  blocker->Hold();
  model_->Hold();
  Batcher batcher({});
  Call before = AddFor(blocker, batcher, {Sentence(1)});
  blocker->WaitForBatches(1);
  Call first = Add(batcher, {Sentence(10)});
  Call second = Add(batcher, {Sentence(20)});
  blocker->Release();
  model_->WaitForBatches(1);

  batcher.Cancel(*first.id);
  EXPECT_THAT(first.results.get(),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("client")));
  EXPECT_THAT(model_->ends(), SizeIs(0));
  EXPECT_EQ(batcher.running_sentences(), 2);
  batcher.Cancel(*second.id);
  EXPECT_THAT(second.results.get(),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("client")));
  model_->WaitForEnds(1);  // though it is held
  EXPECT_THAT(model_->ends(), ElementsAre(ElementsAre(true, true)));
  EXPECT_EQ(batcher.requests(), 0);
  EXPECT_EQ(batcher.queued_sentences(), 0);
}

TEST_F(BatcherTest, OthersOfTheBatchAreAnsweredAfterACancellation) {
  model_->Hold();
  Batcher batcher({.max_batch_tokens = 100});
  Call before = Add(batcher, {Sentence(1)});
  model_->WaitForBatches(1);
  Call first = Add(batcher, {Sentence(10)});
  Call second = Add(batcher, {Sentence(20)});
  batcher.Cancel(*before.id);  // lets the next batch begin
  model_->WaitForBatches(2);
  batcher.Cancel(*first.id);
  model_->Release();
  EXPECT_OK(second.results.get());
  EXPECT_THAT(model_->ends(),
              ElementsAre(ElementsAre(true), ElementsAre(true, false)));
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

TEST_F(BatcherTest, FailureEndsTheRequestsOfTheBatchOnly) {
  Batcher batcher({});
  model_->Fail(absl::UnavailableError("worker w0 is lost"));
  EXPECT_THAT(Add(batcher, {Sentence(10)}).results.get(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("w0")));
  model_->Fail(absl::OkStatus());
  EXPECT_OK(Add(batcher, {Sentence(20)}).results.get());
}

TEST_F(BatcherTest, FinishWaitsForWhatWasAccepted) {
  model_->Hold();
  Batcher batcher({});
  Call running = Add(batcher, {Sentence(10)});
  Call waiting = Add(batcher, {Sentence(20)});
  model_->WaitForBatches(1);
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
