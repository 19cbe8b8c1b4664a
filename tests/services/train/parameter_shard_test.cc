#include "services/train/parameter_shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "services/config/training_job.h"
#include "services/train/job_options.h"
#include "tests/services/train/hungry_optimizer.h"
#include "tests/services/train/step_contract.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

constexpr int32_t kMicrobatches = 5;
constexpr int32_t kExperts = 3;

ParameterStore Store() {
  std::vector<ParameterSpec> specs(2);
  specs[0].name = "dense";
  specs[0].dims = {4, 5};
  specs[0].initializer = {.kind = InitializerKind::kNormal, .stddev = 1.0};
  specs[1].name = "moe.wi";
  specs[1].dims = {kExperts, 4, 5};
  specs[1].per_expert = true;
  specs[1].initializer = specs[0].initializer;
  ParameterStore store(specs, {0, 1, 2},
                       MakeOptimizer(OptimizerConfig(AdamConfig())));
  EXPECT_OK(store.Load(nullptr, 7));
  return store;
}

std::unique_ptr<ParameterShard> Shard(int32_t window = kMicrobatches) {
  auto shard = std::make_unique<ParameterShard>(Store(), /*step=*/0);
  shard->BeginStep(kMicrobatches, window);
  return shard;
}

GradientList Gradients(int64_t step, int32_t microbatch) {
  const uint64_t seed = 100 * step + 10 * microbatch;
  return {{"moe.wi", RandomTensor({kExperts, 4, 5}, seed + 1)},
          {"dense", RandomTensor({4, 5}, seed + 2)}};
}

// The gradients of all microbatches, added one by one in order.
GradientList Sums(int64_t step) {
  GradientList sums = Gradients(step, 0);
  for (int32_t m = 1; m < kMicrobatches; ++m) {
    const GradientList more = Gradients(step, m);
    for (size_t i = 0; i < sums.size(); ++i) {
      for (int64_t k = 0; k < sums[i].second.size(); ++k) {
        sums[i].second.f32()[k] += more[i].second.f32()[k];
      }
    }
  }
  return sums;
}

absl::Status Bring(ParameterShard& shard, int64_t step, int32_t microbatch,
                   int32_t attempt = 0) {
  const absl::Status begun = shard.Begin(step, microbatch, attempt);
  if (!begun.ok()) return begun;
  return shard.Add(step, microbatch, attempt, Gradients(step, microbatch));
}

std::vector<int32_t> Attempts(int32_t attempt = 0) {
  return std::vector<int32_t>(kMicrobatches, attempt);
}

void MakeStep(ParameterShard& shard, int64_t step) {
  for (int32_t m = 0; m < kMicrobatches; ++m) ASSERT_OK(Bring(shard, step, m));
  ASSERT_OK(shard.Prepare(step, Attempts()));
  ASSERT_OK(shard.Commit(step, 0.5, 0.1, /*skip=*/false));
}

std::map<std::string, std::string> Contents(const ParameterShard& shard) {
  return BytesOf(**shard.TakeSnapshot());
}

// The contents of a plain store after `steps` steps.
std::map<std::string, std::string> Expected(int64_t steps) {
  ParameterStore store = Store();
  for (int64_t step = 1; step <= steps; ++step) {
    EXPECT_OK(store.Update(Sums(step), 0.5, step, 0.1));
  }
  return BytesOf(store.Snapshot());
}

TEST(ParameterShardTest, StepsAreTransactions) {
  const auto shard = Shard();
  ExpectTransactions(
      {.fill =
           [&](int64_t step) {
             for (int32_t m = 0; m < kMicrobatches; ++m) {
               ASSERT_OK(Bring(*shard, step, m));
             }
           },
       .prepare =
           [&](int64_t step) { return shard->Prepare(step, Attempts()); },
       .commit =
           [&](int64_t step, double scale, double rate, bool skip) {
             return shard->Commit(step, scale, rate, skip);
           },
       .contents = [&] { return Contents(*shard); }});
  EXPECT_EQ(shard->step(), 3);
}

TEST(ParameterShardTest, StepsOfSumsMadeElsewhereAreTransactions) {
  ParameterShard shard(Store(), /*step=*/0);
  ExpectTransactions(
      {.fill = [](int64_t) {},
       .prepare =
           [&](int64_t step) {
             return shard.PrepareSums(step, {}, [&] { return Sums(step); });
           },
       .commit =
           [&](int64_t step, double scale, double rate, bool skip) {
             return shard.Commit(step, scale, rate, skip);
           },
       .contents = [&] { return Contents(shard); }});
}

TEST(ParameterShardTest, NeitherOrderNorAttemptsShow) {
  std::mt19937 random(3);
  for (int round = 0; round < 100; ++round) {
    const auto shard = Shard();
    std::vector<int32_t> attempts(kMicrobatches);
    for (int64_t step = 1; step <= 2; ++step) {
      std::vector<int32_t> order(kMicrobatches);
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random);
      for (const int32_t m : order) {
        attempts[m] = static_cast<int32_t>(random() % 3);
        // Attempts that end before or after adding their gradients.
        for (int32_t a = 0; a < attempts[m]; ++a) {
          ASSERT_OK(random() % 2 ? shard->Begin(step, m, a)
                                 : Bring(*shard, step, m, a));
        }
        ASSERT_OK(Bring(*shard, step, m, attempts[m]));
        ASSERT_OK(Bring(*shard, step, m, attempts[m]));
      }
      ASSERT_OK(shard->Prepare(step, attempts));
      ASSERT_OK(shard->Commit(step, 0.5, 0.1, /*skip=*/false));
    }
    ASSERT_EQ(Contents(*shard), Expected(2)) << "round " << round;
  }
}

TEST(ParameterShardTest, OnlyTheAttemptThatCountsIsTaken) {
  const auto shard = Shard();
  EXPECT_THAT(shard->CheckAdd(1, 1, 0),
              StatusIs(kPrecondition, HasSubstr("has not been handed out")));
  EXPECT_THAT(shard->Add(1, 1, 0, Gradients(1, 1)),
              StatusIs(kPrecondition, HasSubstr("has not been handed out")));
  ASSERT_OK(shard->Begin(1, 1, 2));
  EXPECT_THAT(shard->Begin(1, 1, 1),
              StatusIs(kPrecondition, HasSubstr("expected attempt 2, got 1")));
  EXPECT_THAT(shard->Add(1, 1, 1, Gradients(1, 1)),
              StatusIs(kPrecondition, HasSubstr("it was handed on")));
  EXPECT_THAT(shard->Add(1, 1, 3, Gradients(1, 1)),
              StatusIs(kPrecondition, HasSubstr("expected attempt 2, got 3")));
  EXPECT_FALSE(shard->Has(1));
  ASSERT_OK(shard->Add(1, 1, 2, Gradients(1, 1)));
  EXPECT_TRUE(shard->Has(1));
  for (const int32_t m : {0, 2, 3, 4}) ASSERT_OK(Bring(*shard, 1, m, 2));
  // A microbatch in the sum does not count once a later attempt has begun,
  // until that attempt brings it, too.
  ASSERT_OK(shard->Begin(1, 1, 4));
  EXPECT_FALSE(shard->Has(1));
  std::vector<int32_t> attempts = Attempts(2);
  EXPECT_THAT(
      shard->Prepare(1, attempts),
      StatusIs(kPrecondition, HasSubstr("microbatch 1: expected attempt "
                                        "2, have an incomplete attempt "
                                        "4")));
  attempts[1] = 4;
  EXPECT_THAT(shard->Prepare(1, attempts),
              StatusIs(kPrecondition, HasSubstr("an incomplete attempt 4")));
  ASSERT_OK(Bring(*shard, 1, 1, 4));
  EXPECT_THAT(shard->Prepare(1, {attempts.data(), 4}),
              StatusIs(kInvalid, HasSubstr("5 microbatches, got 4")));
  ASSERT_OK(shard->Prepare(1, attempts));
  EXPECT_THAT(shard->Prepare(1, Attempts(2)),
              StatusIs(kPrecondition, HasSubstr("with other attempts")));
  ASSERT_OK(shard->Commit(1, 0.5, 0.1, /*skip=*/false));
  EXPECT_EQ(Contents(*shard), Expected(1));
}

TEST(ParameterShardTest, TakesGradientsOfTheOpenStepOnly) {
  const auto shard = Shard();
  for (const int64_t step : {0, 2}) {
    EXPECT_THAT(shard->Begin(step, 0, 0),
                StatusIs(kPrecondition, HasSubstr("of step 1, got")));
  }
  for (const int32_t microbatch : {-1, kMicrobatches}) {
    EXPECT_THAT(shard->Begin(1, microbatch, 0),
                StatusIs(kInvalid, HasSubstr("expected 0 to 4")));
  }
  EXPECT_THAT(shard->Begin(1, 0, -1),
              StatusIs(kInvalid, HasSubstr("attempt of at least 0")));
  for (int32_t m = 0; m < kMicrobatches; ++m) ASSERT_OK(Bring(*shard, 1, m));
  EXPECT_THAT(shard->PreparedSums(1), StatusIs(kPrecondition, HasSubstr("1")));
  ASSERT_OK(shard->Prepare(1, Attempts()));
  EXPECT_THAT(shard->Begin(1, 0, 1),
              StatusIs(kPrecondition, HasSubstr("step 1 is prepared")));
  EXPECT_THAT(shard->Add(1, 0, 0, Gradients(1, 0)),
              StatusIs(kPrecondition, HasSubstr("step 1 is prepared")));
  ASSERT_OK_AND_ASSIGN(const GradientList sums, shard->PreparedSums(1));
  EXPECT_EQ(sums.size(), 2u);
  EXPECT_THAT(shard->PreparedSums(2), StatusIs(kPrecondition, HasSubstr("2")));
  ASSERT_OK(shard->Commit(1, 0.5, 0.1, /*skip=*/false));
  EXPECT_THAT(shard->Add(1, 0, 0, Gradients(1, 0)),
              StatusIs(kPrecondition, HasSubstr("of step 2, got 1")));
  EXPECT_THAT(shard->TensorsOf(0),
              StatusIs(kPrecondition, HasSubstr("expected version 1, got 0")));
  EXPECT_OK(shard->TensorsOf(1));
}

TEST(ParameterShardTest, KeepsNoMoreThanItsWindow) {
  const auto shard = Shard(/*window=*/3);
  for (int64_t step = 1; step <= 2; ++step) {
    EXPECT_THAT(
        Bring(*shard, step, 3),
        StatusIs(kExhausted, HasSubstr("before microbatch 0 is added")));
    ASSERT_OK(Bring(*shard, step, 1));
    ASSERT_OK(Bring(*shard, step, 2));
    EXPECT_FALSE(shard->Has(3));
    EXPECT_EQ(shard->next(), 0);
    ASSERT_OK(Bring(*shard, step, 0));
    EXPECT_EQ(shard->next(), 3);
    ASSERT_OK(Bring(*shard, step, 4));
    ASSERT_OK(Bring(*shard, step, 3));
    EXPECT_EQ(shard->next(), kMicrobatches);
    ASSERT_OK(shard->Prepare(step, Attempts()));
    ASSERT_OK(shard->Commit(step, 0.5, 0.1, /*skip=*/false));
  }
  EXPECT_EQ(Contents(*shard), Expected(2));
}

TEST(ParameterShardTest, GradientsThatDoNotFitLeaveNothing) {
  const auto shard = Shard();
  const auto refused = [&](GradientList gradients, const char* why) {
    EXPECT_THAT(shard->Add(1, 0, 0, gradients),
                StatusIs(kInvalid, HasSubstr(why)));
    EXPECT_THAT(shard->PrepareSums(1, {}, [&] { return gradients; }),
                StatusIs(kInvalid, HasSubstr(why)));
    EXPECT_FALSE(shard->Has(0));
  };
  ASSERT_OK(shard->Begin(1, 0, 0));
  GradientList wrong = Gradients(1, 0);
  wrong.pop_back();
  refused(wrong, "gradient 'dense': expected f32[4, 5], got none");
  wrong.push_back(wrong[0]);
  refused(wrong, "gradient 'dense': expected f32[4, 5], got none");
  wrong[1] = {"dense", RandomTensor({5, 4}, 1)};
  refused(wrong, "expected f32[4, 5], got f32[5, 4]");
  wrong[1].second = Tensor::Zeros(ElementType::kFloat64, {4, 5});
  refused(wrong, "expected f32[4, 5], got f64[4, 5]");
  wrong[1].first = "other";
  refused(wrong, "gradient 'dense'");
  wrong = Gradients(1, 0);
  wrong.push_back(wrong[0]);
  refused(wrong, "expected 2 gradients, got 3");
  wrong[2].first = "other";
  refused(wrong, "expected 2 gradients, got 3");
  MakeStep(*shard, 1);
  EXPECT_EQ(Contents(*shard), Expected(1));
}

TEST(ParameterShardTest, SumsAreMadeElsewhereOnceAStep) {
  ParameterShard shard(Store(), /*step=*/0);
  EXPECT_THAT(shard.Begin(1, 0, 0), StatusIs(kInvalid, HasSubstr("")));
  // A failed PrepareSums() leaves nothing behind and may be retried.
  EXPECT_THAT(
      shard.PrepareSums(1, {7},
                        [] { return absl::UnavailableError("somebody left"); }),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("left")));
  int made = 0;
  const auto make = [&] {
    ++made;
    return Sums(1);
  };
  ASSERT_OK(shard.PrepareSums(1, {7}, make));
  ASSERT_OK(shard.PrepareSums(1, {7}, make));
  EXPECT_THAT(shard.PrepareSums(1, {8}, make),
              StatusIs(kPrecondition, HasSubstr("with other attempts")));
  EXPECT_THAT(shard.PrepareSums(2, {7}, make),
              StatusIs(kPrecondition, HasSubstr("expected step 1, got 2")));
  EXPECT_EQ(made, 1);
  ASSERT_OK(shard.Commit(1, 0.5, 0.1, /*skip=*/false));
  EXPECT_EQ(Contents(shard), Expected(1));
}

TEST(ParameterShardTest, BeginStepDropsWhatWasAdded) {
  const auto shard = Shard();
  ASSERT_OK(shard->Begin(1, 0, 3));
  GradientList poison = Gradients(8, 8);
  ASSERT_OK(shard->Add(1, 0, 3, poison));
  shard->BeginStep(kMicrobatches, kMicrobatches);
  MakeStep(*shard, 1);
  EXPECT_EQ(Contents(*shard), Expected(1));
}

// A snapshot keeps its step's contents whatever follows, while another thread
// reads and releases it, as a checkpoint's writer does.
TEST(ParameterShardTest, ASnapshotIsOfItsStepWhateverFollows) {
  const auto shard = Shard();
  MakeStep(*shard, 1);
  for (int64_t step = 2; step <= 20; step += 2) {
    const auto expected = Contents(*shard);
    std::atomic<bool> over = false;
    std::thread writer([&, snapshot = *shard->TakeSnapshot()]() mutable {
      while (!over) ASSERT_EQ(BytesOf(*snapshot), expected);
      ASSERT_EQ(BytesOf(*snapshot), expected);
      snapshot = nullptr;
    });
    MakeStep(*shard, step);
    over = true;
    MakeStep(*shard, step + 1);
    writer.join();
  }
  EXPECT_EQ(Contents(*shard), Expected(21));
  // Without a snapshot, updates are in place.
  const std::byte* const before = shard->tensors().at("moe.wi").raw();
  MakeStep(*shard, 22);
  EXPECT_EQ(shard->tensors().at("moe.wi").raw(), before);
}

TEST(ParameterShardTest, ManyMayAddAtATime) {
  const auto shard = Shard();
  for (int64_t step = 1; step <= 20; ++step) {
    std::vector<std::thread> threads;
    for (int32_t m = 0; m < kMicrobatches; ++m) {
      for (int copy = 0; copy < 2; ++copy) {
        threads.emplace_back([&, m] { EXPECT_OK(Bring(*shard, step, m)); });
      }
    }
    threads.emplace_back([&] { EXPECT_OK(shard->TensorsOf(step - 1)); });
    for (std::thread& thread : threads) thread.join();
    ASSERT_OK(shard->Prepare(step, Attempts()));
    ASSERT_OK(shard->Commit(step, 0.5, 0.1, /*skip=*/false));
  }
  EXPECT_EQ(Contents(*shard), Expected(20));
}

// CheckCommit() predicts the result of Commit(), so that shards can commit
// together or not at all.
TEST(ParameterShardTest, CheckCommitIsWhatCommitWouldSay) {
  const auto shard = Shard();
  const auto alike = [&](int64_t step, double scale) {
    const absl::Status checked = shard->CheckCommit(step, scale, 0.1);
    EXPECT_EQ(shard->Commit(step, scale, 0.1, /*skip=*/true), checked);
    return checked.ok();
  };
  EXPECT_FALSE(alike(1, 0.5));
  for (int32_t m = 0; m < kMicrobatches; ++m) ASSERT_OK(Bring(*shard, 1, m));
  EXPECT_FALSE(alike(1, 0.5));
  ASSERT_OK(shard->Prepare(1, Attempts()));
  EXPECT_FALSE(alike(2, 0.5));
  EXPECT_FALSE(alike(1, std::numeric_limits<double>::infinity()));
  EXPECT_OK(shard->CheckCommit(1, 0.5, 0.1));
  EXPECT_EQ(shard->step(), 0);
  EXPECT_TRUE(alike(1, 0.5));
  EXPECT_TRUE(alike(1, 0.5));
}

TEST(ParameterShardTest, AnUpdateWithoutMemoryIsItsEnd) {
  std::vector<ParameterSpec> specs(1);
  specs[0].name = "dense";
  specs[0].dims = {4, 5};
  ParameterStore store(specs, {}, std::make_shared<HungryOptimizer>());
  ASSERT_OK(store.Load(nullptr, 7));
  ParameterShard shard(std::move(store), /*step=*/0);
  shard.BeginStep(/*microbatches=*/1, /*window=*/1);
  ASSERT_OK(shard.Begin(1, 0, 0));
  ASSERT_OK(shard.Add(1, 0, 0, {{"dense", RandomTensor({4, 5}, 1)}}));
  ASSERT_OK(shard.Prepare(1, {0}));
  const absl::Status failed = shard.Commit(1, 1.0, 0.1, /*skip=*/false);
  EXPECT_THAT(failed, StatusIs(kExhausted, HasSubstr("no memory")));
  EXPECT_EQ(shard.step(), 0);
  EXPECT_EQ(shard.status(), failed);
  EXPECT_EQ(shard.Commit(1, 1.0, 0.1, /*skip=*/false), failed);
  EXPECT_EQ(shard.TakeSnapshot().status(), failed);
}

}  // namespace
}  // namespace gshard
