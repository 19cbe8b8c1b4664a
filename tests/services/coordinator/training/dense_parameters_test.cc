#include "services/coordinator/training/dense_parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "services/train/job_options.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;

class DenseParametersTest : public ::testing::Test {
 protected:
  DenseParametersTest() {
    ParameterSpec spec;
    spec.name = "a";
    spec.dims = {2};
    auto store = std::make_unique<ParameterStore>(
        std::vector<ParameterSpec>{spec}, std::vector<int32_t>(),
        MakeOptimizer(AdamConfig()));
    EXPECT_OK(store->Load(nullptr, 1));
    dense_ = std::make_unique<DenseParameters>("job/1", std::move(store),
                                               /*step=*/0, &sums_);
    dense_->BeginStep(/*count=*/3, /*window=*/2);
  }

  // The outcome of a push and the thread that reported it.
  struct Outcome {
    absl::Status status;
    std::thread::id thread;
  };
  std::future<Outcome> Push(int32_t microbatch, int32_t attempt, float value) {
    auto outcome = std::make_shared<std::promise<Outcome>>();
    dense_->Push(1, microbatch, attempt,
                 {{"a", Tensor::Floats({2}, {value, value})}},
                 [outcome](const absl::Status& status) {
                   outcome->set_value({status, std::this_thread::get_id()});
                 });
    return outcome->get_future();
  }

  TaskQueue sums_;
  std::unique_ptr<DenseParameters> dense_;
};

TEST_F(DenseParametersTest, AddsOnItsQueueAndSaysWhenItHas) {
  std::promise<void> release;
  std::promise<std::thread::id> held;
  sums_.Post([&, released = release.get_future().share()] {
    held.set_value(std::this_thread::get_id());
    released.wait();
  });
  const std::thread::id queue = held.get_future().get();
  dense_->Expect(0, 0);
  auto pushed = Push(0, 0, 1.0f);
  EXPECT_FALSE(dense_->HasGradients(0));
  release.set_value();
  const Outcome outcome = pushed.get();
  EXPECT_OK(outcome.status);
  EXPECT_EQ(outcome.thread, queue);
  EXPECT_TRUE(dense_->HasGradients(0));
  EXPECT_OK(Push(0, 0, 5.0f).get().status);  // a repeat counts once
  for (const int32_t microbatch : {1, 2}) {
    dense_->Expect(microbatch, 0);
    EXPECT_OK(Push(microbatch, 0, 1.0f).get().status);
  }
  ASSERT_OK_AND_ASSIGN(const std::vector<SquaredNorm> norms,
                       dense_->Prepare({0, 0, 0}));
  ASSERT_EQ(norms.size(), 1);
  EXPECT_EQ(norms[0].value, 2 * 3.0 * 3.0);
}

TEST_F(DenseParametersTest, RefusesWhatWasNotHandedOutOrIsTooEarly) {
  EXPECT_THAT(Push(1, 0, 1.0f).get().status,
              StatusIs(kPrecondition, HasSubstr("not been handed out")));
  for (int32_t i = 0; i < 3; ++i) dense_->Expect(i, i == 0 ? 1 : 0);
  EXPECT_THAT(Push(0, 0, 1.0f).get().status,
              StatusIs(kPrecondition, HasSubstr("expected attempt 1")));
  EXPECT_OK(Push(1, 0, 1.0f).get().status);
  EXPECT_THAT(Push(2, 0, 1.0f).get().status,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("before microbatch 0 is added")));
}

}  // namespace
}  // namespace gshard
