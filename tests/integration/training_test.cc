// Training is a function of the job alone: every loss and every weight has the
// same bits on any cluster.

#include <gmock/gmock.h>

#include "absl/strings/match.h"
#include "services/checkpoint/checkpoint.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "tests/integration/cluster.h"
#include "tests/integration/names_job.h"
#include "tests/reference/local_job.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

struct Outcome {
  std::map<int64_t, double> losses;  // by step
  std::map<std::string, Tensor> tensors;
};

// Waits for all members first, so that all of them take part.
void RunOnCluster(const TrainingJob& job, int routers, int workers,
                  Outcome* outcome) {
  Cluster cluster(routers, workers);
  cluster.WaitForMembers();
  TrainingJob waiting = job;
  waiting.min_routers = routers;
  waiting.min_workers = workers;
  ASSERT_OK_AND_ASSIGN(const auto lines, cluster.Train(waiting));
  for (const auto& [step, line] : lines) {
    if (step > 0) outcome->losses[step] = line.loss();
  }
  // Workers count rows whatever their type.
  EXPECT_THAT(
      cluster.worker(0).Metrics(),
      ::testing::Not(::testing::HasSubstr("gshard_expert_rows_total 0\n")));
  ASSERT_OK_AND_ASSIGN(const std::string path,
                       LatestCheckpoint(job.checkpoint.directory));
  ASSERT_OK_AND_ASSIGN(const auto reader, CheckpointReader::Open(path));
  EXPECT_EQ(reader->manifest().step, job.steps);
  for (const TensorEntry& entry : reader->manifest().tensors) {
    ASSERT_OK_AND_ASSIGN(outcome->tensors[entry.name],
                         reader->Read(entry.name));
  }
}

// Runs the same job in this process with the tokenizer that a cluster trained.
void RunLocally(const TrainingJob& job, const std::string& tokenizer_path,
                Outcome* outcome) {
  ASSERT_OK_AND_ASSIGN(const auto local, LocalJob::Create(job, tokenizer_path));
  for (int64_t step = 1; step <= job.steps; ++step) {
    ASSERT_OK_AND_ASSIGN(const StepResult result, local->Step());
    outcome->losses[step] = result.statistics.loss();
  }
  for (const NamedTensor& named : local->parameters().Snapshot()) {
    if (absl::StartsWith(named.name, "optimizer/")) continue;
    outcome->tensors[named.name] = named.tensor;
  }
}

void ExpectSame(const Outcome& outcome, const Outcome& reference) {
  for (const auto& [step, loss] : reference.losses) {
    const auto found = outcome.losses.find(step);
    ASSERT_NE(found, outcome.losses.end()) << "no line of step " << step;
    EXPECT_EQ(found->second, loss) << "step " << step;
  }
  for (const auto& [name, tensor] : reference.tensors) {
    const auto found = outcome.tensors.find(name);
    ASSERT_NE(found, outcome.tensors.end()) << name;
    EXPECT_TRUE(TensorEqual(found->second, tensor)) << name;
  }
}

// In float32 and with rounding, whose results do not depend on where it
// happens.
class PrecisionTest : public ::testing::TestWithParam<ComputeType> {
 protected:
  static TrainingJob Job(const std::string& checkpoint_directory) {
    TrainingJob job = NamesJob(checkpoint_directory);
    job.model.compute_type = job.model.wire_type = GetParam();
    return job;
  }
};

INSTANTIATE_TEST_SUITE_P(TrainingTest, PrecisionTest,
                         ::testing::Values(ComputeType::kFloat32,
                                           ComputeType::kBFloat16),
                         [](const auto& test) {
                           return test.param == ComputeType::kFloat32
                                      ? "Float32"
                                      : "BFloat16";
                         });

TEST_P(PrecisionTest, AnyClusterTrainsTheModelOfOneProcess) {
  const TemporaryDirectory directory;
  Outcome first;
  const TrainingJob job = Job(directory.path() + "/1-1");
  ASSERT_NO_FATAL_FAILURE(RunOnCluster(job, 1, 1, &first));
  ASSERT_EQ(first.losses.size(), static_cast<size_t>(job.steps));

  Outcome local;
  ASSERT_NO_FATAL_FAILURE(RunLocally(
      job, job.checkpoint.directory + "/tokenizer/source.model", &local));
  ExpectSame(first, local);

  for (const auto& [routers, workers] :
       std::vector<std::pair<int, int>>{{1, 4}, {2, 3}}) {
    SCOPED_TRACE(absl::StrCat(routers, " routers, ", workers, " workers"));
    Outcome outcome;
    ASSERT_NO_FATAL_FAILURE(RunOnCluster(
        Job(absl::StrCat(directory.path(), "/", routers, "-", workers)),
        routers, workers, &outcome));
    ExpectSame(outcome, first);
    EXPECT_EQ(outcome.tensors.size(), first.tensors.size());
  }
}

TEST(TrainingTest, LossFallsAndLoadIsBalanced) {
  const TemporaryDirectory directory;
  TrainingJob job = NamesJob(directory.path());
  job.steps = 60;
  job.model.dropout = {.input = 0, .residual = 0, .attention = 0};
  Cluster cluster(1, 2);
  ASSERT_OK_AND_ASSIGN(const auto lines, cluster.Train(job));
  ASSERT_GE(lines.size(), 2u);
  const v1::JobProgress& last = lines.rbegin()->second;
  EXPECT_EQ(last.step(), 60);
  ASSERT_EQ(lines.count(1), 1u);
  EXPECT_LT(last.loss(), 0.75 * lines.at(1).loss());
  EXPECT_LT(last.balance_loss(), 1.5);
  // The initial magnitude is at least log V for 300 words.
  EXPECT_GT(lines.at(1).logit_magnitude(), 5.0);
  EXPECT_GT(lines.at(1).gate_logit_magnitude(), 1.0);
  EXPECT_GT(last.tokens_per_second(), 0.0);
}

}  // namespace
}  // namespace gshard
