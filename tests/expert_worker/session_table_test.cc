// SessionTable: loads that are aborted.

#include "expert_worker/session_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/expert_worker/training_model.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

// Its first use waits until the test opens it.
class HeldOptimizer final : public Optimizer {
 public:
  explicit HeldOptimizer(std::shared_ptr<const Optimizer> optimizer)
      : optimizer_(std::move(optimizer)) {}

  std::vector<NamedShape> StateShapes(
      absl::Span<const int64_t> dims) const override {
    if (!used_.exchange(true)) {
      reached_.set_value();
      opened_.wait();
    }
    return optimizer_->StateShapes(dims);
  }
  void Update(absl::Span<const int64_t>, absl::Span<float>,
              absl::Span<const float>, double,
              absl::Span<const absl::Span<float>>, int64_t,
              double) const override {}
  absl::Status Update(DeviceRun&, int64_t, absl::Span<const int64_t>, Tensor&,
                      const Tensor&, double, absl::Span<Tensor>, int64_t,
                      double) const override {
    return absl::OkStatus();
  }

  void WaitUntilUsed() const { reached_.get_future().wait(); }
  void Open() const { open_.set_value(); }

 private:
  const std::shared_ptr<const Optimizer> optimizer_;
  mutable std::atomic<bool> used_{false};
  mutable std::promise<void> reached_, open_;
  std::shared_future<void> opened_ = open_.get_future().share();
};

class SessionTableTest : public ::testing::Test {
 protected:
  SessionTableTest() : roles_(SplitTraining(job_)) {}

  WorkerSessionSpec Spec() { return TrainingSpec(job_, roles_.segments, {0}); }
  // Begins to load "held" and waits until that is under way.
  std::future<absl::Status> LoadHeld() {
    WorkerSessionSpec spec = Spec();
    held_ = std::make_shared<HeldOptimizer>(spec.optimizer);
    spec.optimizer = held_;
    std::future<absl::Status> loaded =
        std::async(std::launch::async, [this, spec] {
          return sessions_.Load("held", spec).status();
        });
    held_->WaitUntilUsed();
    return loaded;
  }

  const TrainingJob job_ = SmallJob();
  const RolePrograms roles_;
  std::shared_ptr<const HeldOptimizer> held_;
  SessionTable sessions_{kMemory};
};

constexpr auto kCancelled = absl::StatusCode::kCancelled;

TEST_F(SessionTableTest, AbortEndsTheLoadThatRuns) {
  std::future<absl::Status> held = LoadHeld();
  EXPECT_THAT(sessions_.Load("held", Spec()).status(),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("held")));
  sessions_.Abort("held");
  held_->Open();
  EXPECT_THAT(held.get(), StatusIs(kCancelled, HasSubstr("stopped")));
  EXPECT_EQ(sessions_.size(), 0);
  EXPECT_EQ(sessions_.memory_bytes_used(), 0);
  // An abort ends one load, not those that follow.
  EXPECT_OK(sessions_.Load("held", Spec()));
}

TEST_F(SessionTableTest, AbortEndsALoadThatWaitsForAnother) {
  std::future<absl::Status> held = LoadHeld();
  std::future<absl::Status> waiting = std::async(std::launch::async, [this] {
    return sessions_.Load("waiting", Spec()).status();
  });
  // Repeated, because the load may not have begun.
  do {
    sessions_.Abort("waiting");
  } while (waiting.wait_for(std::chrono::milliseconds(1)) !=
           std::future_status::ready);
  EXPECT_THAT(waiting.get(), StatusIs(kCancelled, HasSubstr("stopped")));
  held_->Open();
  EXPECT_OK(held.get());
  EXPECT_EQ(sessions_.size(), 1);
}

}  // namespace
}  // namespace gshard
