// Processes are lost while a job trains, and its last checkpoint still has the
// bits of an undisturbed run.

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>

#include "services/checkpoint/checkpoint.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "tests/integration/cluster.h"
#include "tests/integration/names_job.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using Tensors = std::map<std::string, Tensor>;
// By step: what to do once, after that step is committed.
using Faults = std::map<int64_t, std::function<void(Cluster&)>>;

TrainingJob TwelveSteps(const std::string& directory) {
  TrainingJob job = NamesJob(directory);
  job.steps = 12;
  job.checkpoint.every_steps = 4;
  job.min_routers = 2;
  job.min_workers = 3;
  job.recovery.replacement_wait_ms = 100;
  return job;
}

void TrainUnder(const TrainingJob& job, Faults faults, Tensors* tensors,
                int64_t* attempts, int64_t* most_redone = nullptr) {
  Cluster cluster(2, 3);
  int64_t furthest = 0;
  ASSERT_OK_AND_ASSIGN(
      const auto lines, cluster.Train(job, [&](const v1::JobProgress& line) {
        furthest = std::max(furthest, line.step());
        if (most_redone != nullptr) {
          *most_redone = std::max(*most_redone, furthest - line.step());
        }
        if (faults.empty() || line.step() < faults.begin()->first) return;
        const auto fault = faults.begin()->second;
        faults.erase(faults.begin());
        fault(cluster);
      }));
  EXPECT_TRUE(faults.empty());
  *attempts = lines.rbegin()->second.attempt();
  ASSERT_OK_AND_ASSIGN(const std::string path,
                       LatestCheckpoint(job.checkpoint.directory));
  ASSERT_OK_AND_ASSIGN(const auto reader, CheckpointReader::Open(path));
  EXPECT_EQ(reader->manifest().step, job.steps);
  for (const TensorEntry& entry : reader->manifest().tensors) {
    ASSERT_OK_AND_ASSIGN((*tensors)[entry.name], reader->Read(entry.name));
  }
}

class RecoveryTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = new TemporaryDirectory();
    undisturbed_ = new Tensors();
    int64_t attempts = 0;
    TrainUnder(TwelveSteps(directory_->path() + "/undisturbed"), {},
               undisturbed_, &attempts);
  }
  static void TearDownTestSuite() {
    delete undisturbed_;
    delete directory_;
  }

  static void ExpectSameAfter(const std::string& name, Faults faults,
                              int64_t least_attempts) {
    Tensors tensors;
    int64_t attempts = 0;
    ASSERT_NO_FATAL_FAILURE(
        TrainUnder(TwelveSteps(directory_->path() + "/" + name),
                   std::move(faults), &tensors, &attempts));
    EXPECT_GE(attempts, least_attempts);
    ExpectUndisturbed(tensors);
  }

  // With buddies and no checkpoint except the last; returns the steps redone.
  static int64_t StepsRedoneAfter(const std::string& name, Faults faults) {
    TrainingJob job = TwelveSteps(directory_->path() + "/" + name);
    job.checkpoint.every_steps = 0;
    job.recovery.buddies = true;
    Tensors tensors;
    int64_t attempts = 0, redone = 0;
    const int64_t losses = static_cast<int64_t>(faults.size());
    TrainUnder(job, std::move(faults), &tensors, &attempts, &redone);
    EXPECT_EQ(attempts, 1 + losses);
    ExpectUndisturbed(tensors);
    return redone;
  }

 private:
  static void ExpectUndisturbed(const Tensors& tensors) {
    ASSERT_FALSE(undisturbed_->empty());
    ASSERT_EQ(tensors.size(), undisturbed_->size());
    for (const auto& [tensor, value] : *undisturbed_) {
      EXPECT_TRUE(TensorEqual(tensors.at(tensor), value)) << tensor;
    }
  }

  static TemporaryDirectory* directory_;
  static Tensors* undisturbed_;
};

TemporaryDirectory* RecoveryTest::directory_ = nullptr;
Tensors* RecoveryTest::undisturbed_ = nullptr;

TEST_F(RecoveryTest, AWorkerIsLostBeforeTheFirstCheckpoint) {
  ExpectSameAfter("worker-2",
                  {{2, [](Cluster& cluster) { cluster.DropWorker(1); }}}, 2);
}

TEST_F(RecoveryTest, WorkersAreLostAndAnotherJoins) {
  ExpectSameAfter("workers",
                  {{5, [](Cluster& cluster) { cluster.DropWorker(0); }},
                   {6, [](Cluster& cluster) { cluster.AddWorker("new"); }},
                   {9, [](Cluster& cluster) { cluster.DropWorker(1); }}},
                  3);
}

TEST_F(RecoveryTest, WithBuddiesAWorkerTakesAStepWithItAtMost) {
  EXPECT_LE(
      StepsRedoneAfter("buddies",
                       {{4, [](Cluster& cluster) { cluster.DropWorker(0); }},
                        {9, [](Cluster& cluster) { cluster.DropWorker(1); }}}),
      1);
}

TEST_F(RecoveryTest, ARouterIsLostAndAnotherJoins) {
  ExpectSameAfter("router",
                  {{3, [](Cluster& cluster) { cluster.DropRouter(0); }},
                   {7, [](Cluster& cluster) { cluster.AddRouter("new"); }}},
                  1);
}

TEST_F(RecoveryTest, TheCoordinatorIsStartedAgain) {
  ExpectSameAfter("coordinator",
                  {{2, [](Cluster& cluster) { cluster.RestartCoordinator(); }},
                   {7, [](Cluster& cluster) { cluster.RestartCoordinator(); }}},
                  3);
}

TEST_F(RecoveryTest, OneOfEachIsLost) {
  ExpectSameAfter("each",
                  {{3, [](Cluster& cluster) { cluster.DropRouter(1); }},
                   {5, [](Cluster& cluster) { cluster.DropWorker(2); }},
                   {7, [](Cluster& cluster) { cluster.RestartCoordinator(); }},
                   {8, [](Cluster& cluster) { cluster.AddWorker("new"); }}},
                  3);
}

}  // namespace
}  // namespace gshard
