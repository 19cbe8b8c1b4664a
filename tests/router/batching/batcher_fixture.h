// Requests to a Batcher with a fake model.

#ifndef TESTS_ROUTER_BATCHING_BATCHER_FIXTURE_H_
#define TESTS_ROUTER_BATCHING_BATCHER_FIXTURE_H_

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "router/batching/batcher.h"
#include "tests/router/fake_model.h"

namespace gshard {

class BatcherFixture : public ::testing::Test {
 protected:
  using Clock = std::chrono::steady_clock;
  using Results = absl::StatusOr<std::vector<Hypotheses>>;

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
           Clock::duration timeout = std::chrono::hours(1)) {
    return AddFor(model_, batcher, std::move(sentences), timeout);
  }
  static Call AddFor(std::shared_ptr<TranslationModel> model, Batcher& batcher,
                     std::vector<SourceSentence> sentences,
                     Clock::duration timeout = std::chrono::hours(1),
                     TraceContext trace = {}) {
    auto promise = std::make_shared<std::promise<Results>>();
    Call call{.id = 0, .results = promise->get_future()};
    call.id = batcher.Add({.model = std::move(model),
                           .sentences = std::move(sentences),
                           .deadline = Clock::now() + timeout,
                           .trace = std::move(trace),
                           .done = [promise](Results results) {
                             promise->set_value(std::move(results));
                           }});
    return call;
  }

  const std::shared_ptr<FakeModel> model_ =
      std::make_shared<FakeModel>("tiny@1");
};

}  // namespace gshard

#endif  // TESTS_ROUTER_BATCHING_BATCHER_FIXTURE_H_
