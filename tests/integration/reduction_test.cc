// Routers that sum dense gradients among themselves write the same last
// checkpoint, optimizer state included, as the coordinator's sum, for any
// number of routers and workers and whichever router is lost at whatever point.

#include <gmock/gmock.h>

#include <atomic>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "services/base/status_macros.h"
#include "services/checkpoint/checkpoint.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "services/collectives/rendezvous.h"
#include "tests/integration/cluster.h"
#include "tests/integration/names_job.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using Tensors = std::map<std::string, Tensor>;
using Lines = std::map<int64_t, v1::JobProgress>;

TrainingJob EightSteps(const std::string& directory) {
  TrainingJob job = NamesJob(directory);
  job.steps = 8;
  job.checkpoint.every_steps = 3;
  job.recovery.replacement_wait_ms = 100;
  job.data.dev_path = job.data.train_path;
  job.validation = {.every_steps = 2, .max_sentences = 8};
  return job;
}

void ReadLast(const TrainingJob& job, Tensors* tensors) {
  ASSERT_OK_AND_ASSIGN(const std::string path,
                       LatestCheckpoint(job.checkpoint.directory));
  ASSERT_OK_AND_ASSIGN(const auto reader, CheckpointReader::Open(path));
  EXPECT_EQ(reader->manifest().step, job.steps);
  for (const TensorEntry& entry : reader->manifest().tensors) {
    ASSERT_OK_AND_ASSIGN((*tensors)[entry.name], reader->Read(entry.name));
  }
}

void TrainOn(
    Cluster& cluster, const TrainingJob& job, Tensors* tensors, Lines* lines,
    const std::function<void(const v1::JobProgress&)>& on_line =
        [](const v1::JobProgress&) {}) {
  cluster.WaitForMembers();
  ASSERT_OK_AND_ASSIGN(*lines, cluster.Train(job, on_line));
  ReadLast(job, tensors);
}

// The point at which a router is lost.
struct Moment {
  std::string name;
  // Completed exchanges: each step has one to sum gradients and one for the new
  // parameters. -1: lost before the rendezvous.
  int exchanges;
};

// A rendezvous whose member stops after some exchanges, reports that, and waits
// to be aborted.
class StoppingRendezvous : public Rendezvous {
 public:
  StoppingRendezvous(std::unique_ptr<Rendezvous> rendezvous, int exchanges,
                     std::promise<void>* stopped)
      : rendezvous_(std::move(rendezvous)),
        left_(exchanges),
        stopped_(stopped) {}

  const std::vector<std::string>& addresses() const override {
    return rendezvous_->addresses();
  }
  absl::StatusOr<Communicator*> Join(
      absl::Span<const std::string> addresses) override {
    if (left_ < 0) Stop();
    ASSIGN_OR_RETURN(Communicator* const group, rendezvous_->Join(addresses));
    group_ = std::make_unique<Group>(this, group);
    return group_.get();
  }
  void Abort() override {
    if (!has_aborted_.exchange(true)) aborted_.set_value();
    rendezvous_->Abort();
  }

 private:
  class Group : public Communicator {
   public:
    Group(StoppingRendezvous* rendezvous, Communicator* group)
        : rendezvous_(rendezvous), group_(group) {}
    int rank() const override { return group_->rank(); }
    int size() const override { return group_->size(); }
    bool on_device() const override { return group_->on_device(); }
    absl::Status Exchange(absl::Span<const SendBytes> send,
                          absl::Span<const ReceiveBytes> receive) override {
      if (rendezvous_->left_-- == 0) rendezvous_->Stop();
      return group_->Exchange(send, receive);
    }

   private:
    StoppingRendezvous* const rendezvous_;
    Communicator* const group_;
  };

  void Stop() {
    stopped_->set_value();
    aborted_.get_future().wait();
  }

  const std::unique_ptr<Rendezvous> rendezvous_;
  int left_;
  std::promise<void>* const stopped_;
  std::promise<void> aborted_;
  std::atomic<bool> has_aborted_ = false;
  std::unique_ptr<Group> group_;
};

// A router that stops thus in its first session.
RendezvousFactory StopsOnce(int exchanges, std::promise<void>* stopped) {
  return [=, first = true](const v1::DenseGroup& group) mutable
         -> absl::StatusOr<std::unique_ptr<Rendezvous>> {
    ASSIGN_OR_RETURN(auto rendezvous, NetworkRendezvous("127.0.0.1")(group));
    if (!std::exchange(first, false)) return rendezvous;
    return std::make_unique<StoppingRendezvous>(std::move(rendezvous),
                                                exchanges, stopped);
  };
}

class ReductionTest : public ::testing::Test {
 protected:
  // Trains the reference: summed by the coordinator, one router, one worker.
  static void SetUpTestSuite() {
    directory_ = new TemporaryDirectory();
    expected_ = new Tensors();
    expected_lines_ = new Lines();
    Cluster cluster(1, 1);
    TrainOn(cluster, EightSteps(directory_->path() + "/coordinator"), expected_,
            expected_lines_);
  }
  static void TearDownTestSuite() {
    delete expected_lines_;
    delete expected_;
    delete directory_;
  }

  static TrainingJob Job(const std::string& name, int routers, int workers) {
    TrainingJob job = EightSteps(directory_->path() + "/" + name);
    job.min_routers = routers;
    job.min_workers = workers;
    return job;
  }

  static void ExpectSameTensors(const Tensors& tensors) {
    ASSERT_FALSE(expected_->empty());
    ASSERT_EQ(tensors.size(), expected_->size());
    for (const auto& [name, tensor] : *expected_) {
      EXPECT_TRUE(TensorEqual(tensors.at(name), tensor)) << name;
    }
  }
  static void ExpectSameLines(const Lines& lines) {
    for (const auto& [step, line] : *expected_lines_) {
      const auto found = lines.find(step);
      ASSERT_NE(found, lines.end()) << step;
      EXPECT_EQ(found->second.loss(), line.loss()) << step;
      EXPECT_EQ(found->second.gradient_norm(), line.gradient_norm()) << step;
    }
  }

  static TemporaryDirectory* directory_;
  static Tensors* expected_;
  static Lines* expected_lines_;
};

TemporaryDirectory* ReductionTest::directory_ = nullptr;
Tensors* ReductionTest::expected_ = nullptr;
Lines* ReductionTest::expected_lines_ = nullptr;

TEST_F(ReductionTest, AnyClusterTrainsTheModelOfTheCoordinator) {
  for (const auto& [routers, workers] :
       std::vector<std::pair<int, int>>{{1, 1}, {2, 3}, {3, 2}}) {
    SCOPED_TRACE(absl::StrCat(routers, " routers, ", workers, " workers"));
    Tensors tensors;
    Lines lines;
    std::string reduce;
    Cluster cluster(routers, workers, ReduceWay::kGloo);
    ASSERT_NO_FATAL_FAILURE(TrainOn(
        cluster, Job(absl::StrCat(routers, "-", workers), routers, workers),
        &tensors, &lines, [&](const v1::JobProgress& line) {
          if (line.step() != 2) return;
          const auto system = cluster.Describe();
          if (system.sessions_size() == 1) {
            reduce = system.sessions(0).reduce();
          }
        }));
    ExpectSameTensors(tensors);
    ExpectSameLines(lines);
    EXPECT_EQ(lines.rbegin()->second.attempt(), 1);
    EXPECT_EQ(reduce, "gloo");
  }
}

TEST_F(ReductionTest, AJobBeginsWithTheWeightsOfAnother) {
  Tensors first;
  for (const ReduceWay way : {ReduceWay::kCoordinator, ReduceWay::kGloo}) {
    SCOPED_TRACE(ReduceWayName(way));
    TrainingJob job = Job(absl::StrCat("tuning-", ReduceWayName(way)), 2, 2);
    job.initialize_from = directory_->path() + "/coordinator";
    job.steps = 1;
    job.optimizer = AdafactorConfig();
    job.schedule.multiplier = 1e-9;
    Tensors tensors;
    Lines lines;
    Cluster cluster(2, 2, way);
    ASSERT_NO_FATAL_FAILURE(TrainOn(cluster, job, &tensors, &lines));
    EXPECT_NEAR(lines.rbegin()->second.validation_loss(),
                expected_lines_->rbegin()->second.validation_loss(), 1e-5);
    if (first.empty()) first = tensors;
    for (const auto& [name, tensor] : first) {
      EXPECT_TRUE(TensorEqual(tensors.at(name), tensor)) << name;
    }
  }
}

TEST_F(ReductionTest, ARouterIsLostAndAnotherJoins) {
  Tensors tensors;
  Lines lines;
  Cluster cluster(2, 2, ReduceWay::kGloo);
  bool lost = false, joined = false;
  ASSERT_NO_FATAL_FAILURE(
      TrainOn(cluster, Job("lost", 2, 2), &tensors, &lines,
              [&](const v1::JobProgress& line) {
                if (line.step() >= 4 && !std::exchange(lost, true)) {
                  cluster.DropRouter(0);
                } else if (line.step() >= 5 && !std::exchange(joined, true)) {
                  cluster.AddRouter("new");
                }
              }));
  ExpectSameTensors(tensors);
  EXPECT_GE(lines.rbegin()->second.attempt(), 2);
}

TEST_F(ReductionTest, ARouterThatJoinsLaterAndCannotLoadIsDoneWithout) {
  Cluster cluster(2, 2, ReduceWay::kGloo);
  std::promise<void> stopped;
  cluster.AddRouter("stops", StopsOnce(/*exchanges=*/0, &stopped));
  // It is there when the next attempt begins.
  std::thread dropping([&] {
    stopped.get_future().wait();
    cluster.AddRouter("unfit",
                      [](const v1::DenseGroup&)
                          -> absl::StatusOr<std::unique_ptr<Rendezvous>> {
                        return absl::PermissionDeniedError("no network");
                      });
    cluster.WaitForMembers();
    cluster.DropRouter(2);
  });
  Tensors tensors;
  Lines lines;
  TrainOn(cluster, Job("unfit", 3, 2), &tensors, &lines);
  dropping.join();
  ExpectSameTensors(tensors);
  EXPECT_EQ(lines.rbegin()->second.attempt(), 3);
}

class LostAt : public ReductionTest,
               public ::testing::WithParamInterface<Moment> {};

// When a router is lost at any point of a step, the others resume from the last
// checkpoint (every 3 steps) and end with the same tensors.
TEST_P(LostAt, TheOthersGoOnFromTheLastCheckpoint) {
  Cluster cluster(2, 2, ReduceWay::kGloo);
  std::promise<void> stopped;
  cluster.AddRouter("stops", StopsOnce(GetParam().exchanges, &stopped));
  std::thread dropping([&] {
    stopped.get_future().wait();
    cluster.DropRouter(2);
  });
  Tensors tensors;
  Lines lines;
  // Before the first step the job goes on with no fewer than it asks for.
  TrainOn(cluster, Job(GetParam().name, 2, 2), &tensors, &lines);
  dropping.join();
  ExpectSameTensors(tensors);
  EXPECT_EQ(lines.rbegin()->second.attempt(), 2);
}

INSTANTIATE_TEST_SUITE_P(, LostAt,
                         ::testing::Values(Moment{"Rendezvous", -1},
                                           Moment{"FirstStep", 0},
                                           Moment{"Prepare", 8},
                                           Moment{"Commit", 9},
                                           Moment{"LastCommit", 15}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace gshard
