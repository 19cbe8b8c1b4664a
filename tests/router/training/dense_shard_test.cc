// The dense parameter shards of two routers, in this process, on the host or on
// devices of their own.

#include "router/training/dense_shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "services/base/status_macros.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "services/train/job_options.h"
#include "tests/services/collectives/local_rendezvous.h"
#include "tests/services/storage/disk_faults.h"
#include "tests/services/storage/scratch_directory.h"
#include "tests/services/train/step_contract.h"
#include "tests/testing/fake_device.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::_;
using ::testing::HasSubstr;

constexpr int kRouters = 2;
constexpr int64_t kMicrobatches = 3;
const std::vector<int32_t>& Attempts() {
  static const auto& attempts = *new std::vector<int32_t>{0, 2, 0};
  return attempts;
}
const std::vector<int32_t>& RanBy() {
  static const auto& ran_by = *new std::vector<int32_t>{1, 0, 1};
  return ran_by;
}

std::vector<ParameterSpec> Specs() {
  std::vector<ParameterSpec> specs(3);
  specs[0].name = "embedding";
  specs[0].dims = {6, 4};
  specs[1].name = "norm";
  specs[1].dims = {4};
  specs[2].name = "wi";
  specs[2].dims = {4, 5};
  return specs;
}

GradientList Gradients(int64_t step, int32_t microbatch) {
  GradientList gradients;
  uint64_t seed = 100 * step + 10 * microbatch;
  for (const ParameterSpec& spec : Specs()) {
    gradients.emplace_back(spec.name, RandomTensor(spec.dims, ++seed));
  }
  return gradients;
}

DenseShardSpec Spec(int rank) {
  DenseShardSpec spec;
  spec.parameters = Specs();
  spec.optimizer = MakeOptimizer(OptimizerConfig(AdamConfig()));
  spec.rank = rank;
  spec.owners = DivideAmong(Specs(), kRouters);
  spec.source.initial_seed = 3;
  spec.microbatches_per_step = kMicrobatches;
  spec.max_round_bytes = 64;  // several rounds
  return spec;
}

// The parameters of one process after the first `steps` steps.
ParameterStore Expected(int64_t steps) {
  ParameterStore store(Specs(), {},
                       MakeOptimizer(OptimizerConfig(AdamConfig())));
  EXPECT_OK(store.Load(nullptr, 3));
  for (int64_t step = 1; step <= steps; ++step) {
    GradientList sums = Gradients(step, 0);
    for (int32_t m = 1; m < kMicrobatches; ++m) {
      const GradientList more = Gradients(step, m);
      for (size_t i = 0; i < sums.size(); ++i) {
        for (int64_t k = 0; k < sums[i].second.size(); ++k) {
          sums[i].second.f32()[k] += more[i].second.f32()[k];
        }
      }
    }
    EXPECT_OK(store.Update(sums, 0.5, step, 0.1));
  }
  return store;
}

absl::StatusOr<std::vector<TensorEntry>> Write(const DenseShard& shard,
                                               const ShardTarget& target) {
  ASSIGN_OR_RETURN(const auto snapshot, shard.TakeSnapshot(target.step));
  return shard.WriteCheckpoint(target, snapshot);
}

class DenseShardTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    Make([](DenseShardSpec*) {});
  }

  void Make(const std::function<void(DenseShardSpec*)>& change) {
    std::vector<std::unique_ptr<LocalWorld>> worlds = LocalWorlds(kRouters);
    for (int rank = 0; rank < kRouters; ++rank) {
      DenseShardSpec spec = Spec(rank);
      if (GetParam()) spec.device = &devices_[rank];
      change(&spec);
      ASSERT_OK_AND_ASSIGN(
          shards_[rank],
          DenseShard::Create(std::move(spec), std::make_unique<LocalRendezvous>(
                                                  std::move(worlds[rank]))));
      ASSERT_OK(shards_[rank]->Connect({"", ""}));
    }
  }

  // Runs `command` on both shards concurrently; returns statuses by rank.
  std::vector<absl::Status> Both(
      const std::function<absl::Status(DenseShard&)>& command) {
    std::vector<absl::Status> statuses(kRouters);
    std::thread other([&] { statuses[1] = command(*shards_[1]); });
    statuses[0] = command(*shards_[0]);
    other.join();
    return statuses;
  }

  void KeepAll(int64_t step) {
    for (int32_t m = 0; m < kMicrobatches; ++m) {
      ASSERT_OK(shards_[RanBy()[m]]->Keep(step, m, Attempts()[m],
                                          Gradients(step, m)));
    }
  }

  static absl::Status Prepare(DenseShard& shard, int64_t step) {
    return shard.PrepareStep(step, Attempts(), RanBy()).status();
  }

  void MakeStep(int64_t step) {
    KeepAll(step);
    Complete(step);
  }

  void Complete(int64_t step) {
    for (const absl::Status& status :
         Both([&](DenseShard& shard) { return Prepare(shard, step); })) {
      ASSERT_OK(status);
    }
    for (const absl::Status& status : Both([&](DenseShard& shard) {
           return shard.CommitStep(step, 0.5, 0.1, /*skip=*/false);
         })) {
      ASSERT_OK(status);
    }
  }

  void ExpectParameters(int64_t step, int64_t made) {
    const ParameterStore expected = Expected(made);
    for (const auto& shard : shards_) {
      ASSERT_OK_AND_ASSIGN(const auto parameters, shard->ParametersOf(step));
      ASSERT_EQ(parameters->size(), Specs().size());
      for (const auto& [name, tensor] : expected.tensors()) {
        EXPECT_TRUE(TensorEqual(OnHost(parameters->at(name)), tensor)) << name;
      }
    }
  }

  Tensor OnHost(const Tensor& tensor) {
    EXPECT_EQ(tensor.on_host(), !GetParam());
    return CopyToHost(devices_[0], tensor).value();
  }

  FakeDevice devices_[kRouters];
  std::unique_ptr<DenseShard> shards_[kRouters];
};

INSTANTIATE_TEST_SUITE_P(, DenseShardTest, ::testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "OnDevices" : "OnTheHost";
                         });

TEST_P(DenseShardTest, StepsHaveTheBitsOfOneProcess) {
  ExpectParameters(0, 0);
  for (int64_t step = 1; step <= 3; ++step) {
    MakeStep(step);
    ExpectParameters(step, step);
  }
  EXPECT_THAT(shards_[0]->ParametersOf(2),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("expected version 3, got 2")));
}

// Of 48 parameters each owns 24, with two moments and a sum each. Before the
// sum there are the gradients of two microbatches beside all parameters.
TEST_P(DenseShardTest, SaysWhatItHolds) {
  for (const auto& shard : shards_) {
    EXPECT_EQ(shard->memory_bytes(), 4 * (3 * 24 + 3 * 48) + 2 * 64);
  }
}

TEST_P(DenseShardTest, RepeatedCommandsDoNothing) {
  MakeStep(1);
  KeepAll(2);
  std::vector<SquaredNorm> norms[2];
  for (auto& again : norms) {
    // Only shard 0 repeats the command; the other shard need not.
    const auto prepare = [&](DenseShard& shard) -> absl::Status {
      auto result = shard.PrepareStep(2, Attempts(), RanBy());
      if (&shard == shards_[0].get()) again = *result;
      return result.status();
    };
    if (&again == &norms[0]) {
      for (const absl::Status& status : Both(prepare)) ASSERT_OK(status);
    } else {
      ASSERT_OK(prepare(*shards_[0]));
    }
  }
  ASSERT_EQ(norms[0].size(), norms[1].size());
  EXPECT_EQ(norms[0][0].value, norms[1][0].value);
  for (const absl::Status& status : Both([&](DenseShard& shard) {
         return shard.CommitStep(2, 0.5, 0.1, false);
       })) {
    ASSERT_OK(status);
  }
  ASSERT_OK(shards_[1]->CommitStep(2, 0.5, 0.1, false));
  ExpectParameters(2, 2);
}

TEST_P(DenseShardTest, StepsAreTransactions) {
  ExpectTransactions(
      {.fill = [&](int64_t step) { KeepAll(step); },
       .prepare =
           [&](int64_t step) -> absl::StatusOr<std::vector<SquaredNorm>> {
         absl::StatusOr<std::vector<SquaredNorm>> norms;
         const auto statuses = Both([&](DenseShard& shard) {
           auto own = shard.PrepareStep(step, Attempts(), RanBy());
           if (&shard == shards_[0].get()) norms = own;
           return own.status();
         });
         EXPECT_EQ(statuses[0], statuses[1]);
         return norms;
       },
       .commit =
           [&](int64_t step, double scale, double rate, bool skip) {
             const auto statuses = Both([&](DenseShard& shard) {
               return shard.CommitStep(step, scale, rate, skip);
             });
             EXPECT_EQ(statuses[0], statuses[1]);
             return statuses[0];
           },
       .contents =
           [&] {
             const ScratchDirectory scratch;
             std::map<std::string, std::string> contents;
             for (const auto& shard : shards_) {
               // Only the checkpoint of the last step is written.
               for (int64_t step = 0; step <= 3; ++step) {
                 const auto entries =
                     Write(*shard, {scratch.path(), step, "s"});
                 if (!entries.ok()) continue;
                 for (const TensorEntry& entry : *entries) {
                   contents[entry.name] = entry.sha256;
                 }
               }
             }
             return contents;
           }});
  ASSERT_OK_AND_ASSIGN(const auto one, shards_[0]->ParametersOf(3));
  ASSERT_OK_AND_ASSIGN(const auto other, shards_[1]->ParametersOf(3));
  for (const auto& [name, tensor] : *one) {
    EXPECT_TRUE(TensorEqual(OnHost(tensor), OnHost(other->at(name)))) << name;
  }
}

using DeviceShardTest = DenseShardTest;
INSTANTIATE_TEST_SUITE_P(OnDevices, DeviceShardTest, ::testing::Values(true));

TEST_P(DeviceShardTest, GradientsOnItsDeviceAreKeptThere) {
  for (int32_t m = 0; m < kMicrobatches; ++m) {
    FakeDevice& device = devices_[RanBy()[m]];
    GradientList gradients = Gradients(1, m);
    for (auto& [name, gradient] : gradients) {
      ASSERT_OK_AND_ASSIGN(gradient, CopyToDevice(device, gradient));
    }
    const int64_t before = device.copies_to_device();
    ASSERT_OK(
        shards_[RanBy()[m]]->Keep(1, m, Attempts()[m], std::move(gradients)));
    EXPECT_EQ(device.copies_to_device(), before);
  }
  Complete(1);
  ExpectParameters(1, 1);
}

// Wherever in a step it fails, the others do not wait for this router.
TEST_P(DeviceShardTest, ADeviceThatFailsEndsTheSessionForAll) {
  const absl::Status lost = absl::UnavailableError("the device is lost");
  for (absl::Status FakeDevice::*const error :
       {&FakeDevice::finish_error, &FakeDevice::squares_error,
        &FakeDevice::update_error}) {
    SetUp();
    MakeStep(1);
    KeepAll(2);
    const bool in_update = error == &FakeDevice::update_error;
    devices_[0].*error = lost;
    std::vector<absl::Status> statuses =
        Both([&](DenseShard& shard) { return Prepare(shard, 2); });
    if (in_update) {
      ASSERT_OK(statuses[0]);
      statuses = Both([&](DenseShard& shard) {
        return shard.CommitStep(2, 0.5, 0.1, /*skip=*/false);
      });
    }
    devices_[0].*error = absl::OkStatus();
    EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kUnavailable,
                                      HasSubstr("the device is lost")));
    // The other one may have been done with its part of it.
    if (error != &FakeDevice::squares_error) {
      EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kUnavailable, _));
    }
    // What it has left is of no step.
    const ScratchDirectory scratch;
    EXPECT_EQ(Write(*shards_[0], {scratch.path(), 1, "s"}).status(),
              statuses[0]);
    EXPECT_EQ(shards_[0]->ParametersOf(1).status(), statuses[0]);
    EXPECT_EQ(Prepare(*shards_[0], 2), statuses[0]);
  }
}

TEST_P(DenseShardTest, ASkippedStepChangesNothing) {
  KeepAll(1);
  Both([&](DenseShard& shard) { return Prepare(shard, 1); });
  for (const auto& shard : shards_) {
    ASSERT_OK(shard->CommitStep(1, 0, 0, /*skip=*/true));
  }
  ExpectParameters(1, 0);
}

TEST_P(DenseShardTest, LateAndWrongMessagesAreRefused) {
  MakeStep(1);
  DenseShard& shard = *shards_[0];
  EXPECT_THAT(shard.Keep(1, 0, 0, Gradients(1, 0)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("gradients of step 2, got 1")));
  EXPECT_THAT(shard.Keep(2, 3, 0, Gradients(2, 3)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("microbatch: expected 0 to 2")));
  GradientList gradients = Gradients(2, 0);
  gradients.pop_back();
  EXPECT_THAT(shard.Keep(2, 0, 0, gradients),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("gradient 'wi': expected f32[4, 5]")));
  ASSERT_OK(shard.Keep(2, 0, 1, Gradients(2, 0)));
  EXPECT_THAT(shard.Keep(2, 0, 0, Gradients(2, 0)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("expected attempt 1, got 0")));
  EXPECT_THAT(Prepare(shard, 1), StatusIs(absl::StatusCode::kFailedPrecondition,
                                          HasSubstr("expected step 2, got 1")));
  EXPECT_THAT(shard.CommitStep(2, 1, 1, false),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("step 2 is not prepared")));
  EXPECT_THAT(
      shard.CommitStep(2, std::numeric_limits<double>::infinity(), 1, false),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("finite")));
  EXPECT_THAT(
      shard.Connect({"", ""}),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("connected")));
  MakeStep(2);  // the refused messages had no effect
  ExpectParameters(2, 2);
}

// A shard that cannot complete a step tells the others, and all fail.
TEST_P(DenseShardTest, AnAttemptThatDoesNotCountEndsTheSessionForAll) {
  ASSERT_OK(shards_[0]->Keep(1, 1, /*attempt=*/1, Gradients(1, 1)));
  ASSERT_OK(shards_[1]->Keep(1, 0, 0, Gradients(1, 0)));
  ASSERT_OK(shards_[1]->Keep(1, 2, 0, Gradients(1, 2)));
  const auto statuses =
      Both([&](DenseShard& shard) { return Prepare(shard, 1); });
  EXPECT_THAT(statuses[0],
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("microbatch 1: expected attempt 2, have "
                                 "attempt 1")));
  EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kUnavailable, _));
  EXPECT_EQ(Prepare(*shards_[1], 1), statuses[1]);  // permanently
}

TEST_P(DenseShardTest, AbortEndsTheWaitForTheOthers) {
  for (const bool commits : {false, true}) {
    SetUp();
    KeepAll(1);
    if (commits) Both([&](DenseShard& shard) { return Prepare(shard, 1); });
    absl::Status status;
    std::thread waiting([&] {
      status = commits ? shards_[0]->CommitStep(1, 0.5, 0.1, false)
                       : Prepare(*shards_[0], 1);
    });
    shards_[0]->Abort();
    waiting.join();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kCancelled, _));
    // The other shard neither waits nor commits.
    EXPECT_THAT(commits ? shards_[1]->CommitStep(1, 0.5, 0.1, false)
                        : Prepare(*shards_[1], 1),
                StatusIs(absl::StatusCode::kUnavailable, _));
  }
}

// Writes the shard of `step` until `gate` opens, and then to its end.
class SlowWrite {
 public:
  SlowWrite(const DenseShard& shard, int64_t step) {
    auto snapshot = shard.TakeSnapshot(step);
    EXPECT_OK(snapshot);
    writer_ = std::thread(
        [this, &shard, step, snapshot = *std::move(snapshot)]() mutable {
          entries_ = shard.WriteCheckpoint({scratch_.path(), step, "slow"},
                                           snapshot, &gate_);
          snapshot = nullptr;
        });
    gate_.WaitUntilReached();
  }

  void Open() { gate_.Open(); }
  absl::StatusOr<std::vector<TensorEntry>> Wait() {
    writer_.join();
    return entries_;
  }

 private:
  const ScratchDirectory scratch_;
  Gate gate_{DiskChange::Kind::kCreate, "slow.safetensors"};
  absl::StatusOr<std::vector<TensorEntry>> entries_;
  std::thread writer_;
};

TEST_P(DenseShardTest, StepsGoOnWhileAShardIsWritten) {
  const ScratchDirectory scratch;
  MakeStep(1);
  ASSERT_OK_AND_ASSIGN(const auto expected,
                       Write(*shards_[0], {scratch.path(), 1, "s"}));
  SlowWrite write(*shards_[0], 1);
  MakeStep(2);
  write.Open();
  MakeStep(3);
  ASSERT_OK_AND_ASSIGN(const auto entries, write.Wait());
  ExpectParameters(3, 3);
  ASSERT_EQ(entries.size(), expected.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    EXPECT_EQ(entries[i].name, expected[i].name);
    EXPECT_EQ(entries[i].sha256, expected[i].sha256) << entries[i].name;
  }
}

TEST_P(DenseShardTest, AbortEndsTheWritingOfAShard) {
  SlowWrite write(*shards_[0], 0);
  shards_[0]->Abort();
  write.Open();
  EXPECT_THAT(write.Wait(), StatusIs(absl::StatusCode::kCancelled,
                                     HasSubstr("no longer wanted")));
}

TEST_P(DenseShardTest, TwoGoOnFromTheCheckpointOfTwo) {
  const ScratchDirectory scratch;
  MakeStep(1);
  Manifest manifest;
  manifest.step = 1;
  manifest.model_config = "x";
  for (int rank = 0; rank < kRouters; ++rank) {
    EXPECT_THAT(Write(*shards_[rank], {scratch.path(), 2, "s"}),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("last step committed, 1, got 2")));
    ASSERT_OK_AND_ASSIGN(
        const auto entries,
        Write(*shards_[rank],
              {scratch.path(), 1, absl::StrCat("router-", rank)}));
    manifest.tensors.insert(manifest.tensors.end(), entries.begin(),
                            entries.end());
  }
  EXPECT_EQ(manifest.tensors.size(), 3 * Specs().size());  // with Adam's state
  ASSERT_OK_AND_ASSIGN(const std::string path,
                       CommitCheckpoint(scratch.path(), manifest, "", ""));
  Make([&](DenseShardSpec* spec) {
    spec->source.checkpoint_directory = path;
    spec->source.step = 1;
  });
  MakeStep(2);
  ExpectParameters(2, 2);
  DenseShardSpec spec = Spec(0);
  spec.source.checkpoint_directory = path;
  spec.source.step = 5;
  EXPECT_THAT(DenseShard::Create(std::move(spec),
                                 std::make_unique<LocalRendezvous>(
                                     std::move(LocalWorlds(kRouters)[0]))),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("a checkpoint of step 5, got 1")));
}

TEST_P(DenseShardTest, SpecsAreChecked) {
  const auto create = [](const std::function<void(DenseShardSpec*)>& change) {
    DenseShardSpec spec = Spec(0);
    change(&spec);
    return DenseShard::Create(std::move(spec),
                              std::make_unique<LocalRendezvous>(
                                  std::move(LocalWorlds(kRouters)[0])))
        .status();
  };
  EXPECT_THAT(create([](DenseShardSpec* spec) { spec->rank = 2; }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank")));
  EXPECT_THAT(
      create([](DenseShardSpec* spec) { spec->owners[1].clear(); }),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no owner")));
  EXPECT_THAT(
      create([](DenseShardSpec* spec) { spec->microbatches_per_step = 0; }),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("microbatches_per_step: expected at least 1, got 0")));
  EXPECT_THAT(
      create([](DenseShardSpec* spec) { spec->source.skipped_steps = 1; }),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("skipped_steps: expected 0 to 0, got 1")));
}

}  // namespace
}  // namespace gshard
