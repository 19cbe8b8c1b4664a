// Text of several files and languages, sampled by temperature, with a held-out
// part: losses and validations depend on the job alone, not on the cluster, and
// equal those with text in memory.

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "services/checkpoint/checkpoint.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "tests/integration/cluster.h"
#include "tests/integration/names_job.h"
#include "tests/reference/local_job.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Measured {
  double loss = 0.0;
  double overflow = 0.0;
  bool operator==(const Measured&) const = default;
};

void PrintTo(const Measured& m, std::ostream* out) {
  *out << "loss " << m.loss << ", overflow " << m.overflow;
}

struct Outcome {
  std::map<int64_t, double> losses;         // by step
  std::map<int64_t, Measured> validations;  // by step
};

class ValidationTest : public ::testing::Test {
 protected:
  // Splits names.tsv by language and holds out a fifth. One file has bad lines
  // and no language column.
  void SetUp() override {
    std::ifstream names("tests/data/names.tsv");
    std::map<std::string, std::ofstream> files;
    for (const char* name : {"de", "fr", "es", "dev"}) {
      files[name].open(Path(name));
    }
    std::string line;
    for (int i = 0; std::getline(names, line); ++i) {
      const std::string language = line.substr(0, 2);
      if (i % 5 == 0) {
        files["dev"] << line << '\n';
      } else if (language == "fr") {
        files["fr"] << line.substr(3) << (i % 9 == 0 ? "\nno pair\n" : "\n");
      } else {
        files[language] << line << '\n';
      }
    }
  }

  std::string Path(const std::string& name) const {
    return directory_.path() + "/" + name;
  }

  TrainingJob Job(const std::string& checkpoints) const {
    TrainingJob job = NamesJob(Path(checkpoints));
    job.data.train_path = Path("de");
    job.data.train_files = {{Path("fr"), "fr", 1.0}, {Path("e*"), "", 0.5}};
    job.data.dev_path = Path("dev");
    job.data.sampling_temperature = 5.0;
    job.model.gate.evaluation_capacity_factor = 0.5;
    job.checkpoint.every_steps = 2;
    job.checkpoint.keep = 10;
    job.validation = {.every_steps = 3, .max_sentences = 50};
    return job;
  }

  // Trains the job up to step `until` on a new cluster.
  void RunOnCluster(TrainingJob job, int routers, int workers, int64_t until,
                    bool resume, Outcome* outcome) {
    Cluster cluster(routers, workers);
    cluster.WaitForMembers();
    job.steps = until;
    job.min_routers = routers;
    job.min_workers = workers;
    ASSERT_OK_AND_ASSIGN(const auto lines,
                         cluster.Train(
                             job,
                             [&](const v1::JobProgress& line) {
                               // The first line of a job has no loss yet.
                               if (line.loss() > 0) {
                                 outcome->losses[line.step()] = line.loss();
                               }
                               if (line.validation_step() == 0) return;
                               outcome->validations[line.validation_step()] = {
                                   line.validation_loss(),
                                   line.validation_overflow_ratio()};
                             },
                             resume));
    const v1::JobProgress& last = lines.rbegin()->second;
    EXPECT_GT(last.bad_lines(), 5);
    EXPECT_EQ(last.text_pairs() + last.left_out_long(), 408);
  }

  // Runs the same job in one process with the text in memory.
  void RunLocally(TrainingJob job, const std::string& tokenizer_path,
                  Outcome* outcome) {
    job.data.train_files[1].path = Path("es");
    ASSERT_OK_AND_ASSIGN(const auto local,
                         LocalJob::Create(job, tokenizer_path));
    ASSERT_GT(local->held_out_microbatches(), 2);
    for (int64_t step = 1; step <= job.steps; ++step) {
      ASSERT_OK_AND_ASSIGN(const StepResult result, local->Step());
      outcome->losses[step] = result.statistics.loss();
      if (step % 2 != 0 && step % 3 != 0) continue;
      ASSERT_OK_AND_ASSIGN(const StepStatistics sums, local->Validate());
      outcome->validations[step] = {sums.loss(), sums.overflow_share()};
    }
  }

  const TemporaryDirectory directory_;
};

TEST_F(ValidationTest, AnyClusterMeasuresWhatOneProcessDoes) {
  const TrainingJob job = Job("local");
  Outcome first;
  ASSERT_NO_FATAL_FAILURE(
      RunOnCluster(job, 1, 1, job.steps, /*resume=*/false, &first));
  Outcome local;
  ASSERT_NO_FATAL_FAILURE(
      RunLocally(job, Path("local/tokenizer/source.model"), &local));
  ASSERT_EQ(local.validations.size(), 4u);  // after 2, 3, 4 and 6
  EXPECT_GT(local.validations[2].overflow, 0.0);
  EXPECT_NE(local.validations[2].loss, local.validations[6].loss);
  EXPECT_EQ(first.losses, local.losses);
  EXPECT_EQ(first.validations, local.validations);

  Outcome many;
  ASSERT_NO_FATAL_FAILURE(RunOnCluster(Job("many"), 2, 3, job.steps,
                                       /*resume=*/false, &many));
  EXPECT_EQ(many.losses, local.losses);
  EXPECT_EQ(many.validations, local.validations);
  for (const int64_t step : {2, 4, 6}) {
    ASSERT_OK_AND_ASSIGN(
        const auto reader,
        CheckpointReader::Open(CheckpointPath(Path("many"), step)));
    EXPECT_EQ(reader->manifest().validation_loss, local.validations[step].loss);
  }

  // The job starts on one cluster and ends on another.
  Outcome resumed;
  ASSERT_NO_FATAL_FAILURE(
      RunOnCluster(Job("two"), 1, 2, 4, /*resume=*/false, &resumed));
  ASSERT_NO_FATAL_FAILURE(
      RunOnCluster(Job("two"), 2, 1, job.steps, /*resume=*/true, &resumed));
  EXPECT_EQ(resumed.losses, local.losses);
  EXPECT_EQ(resumed.validations, local.validations);
}

TEST_F(ValidationTest, TextThatChangesUnderAJobFailsIt) {
  TrainingJob job = Job("changed");
  job.steps = 1000;
  Cluster cluster(1, 1);
  cluster.WaitForMembers();
  bool changed = false;
  const auto lines = cluster.Train(job, [&](const v1::JobProgress& line) {
    if (line.step() < 1 || std::exchange(changed, true)) return;
    for (const char* name : {"de", "fr", "es"}) {
      std::ofstream(Path(name), std::ios::app) << "de\tneu\tnew\n";
    }
  });
  EXPECT_THAT(lines, StatusIs(absl::StatusCode::kAborted,
                              AllOf(HasSubstr("FAILED_PRECONDITION"),
                                    HasSubstr("has changed since"))));
}

// A truncated text index fails the job. If the index were mapped, it would kill
// the router.
TEST_F(ValidationTest, AnIndexThatIsCutUnderAJobFailsIt) {
  TrainingJob job = Job("cut");
  job.steps = 1000;
  Cluster cluster(1, 1);
  cluster.WaitForMembers();
  bool cut = false;
  const auto lines = cluster.Train(job, [&](const v1::JobProgress& line) {
    if (line.step() < 1 || std::exchange(cut, true)) return;
    for (const auto& file : std::filesystem::directory_iterator(
             job.checkpoint.directory + "/text")) {
      std::filesystem::resize_file(file.path(), 100);
    }
  });
  EXPECT_THAT(lines, StatusIs(absl::StatusCode::kAborted,
                              AllOf(HasSubstr("FAILED_PRECONDITION"),
                                    HasSubstr(".pairs has changed since"))));
}

}  // namespace
}  // namespace gshard
