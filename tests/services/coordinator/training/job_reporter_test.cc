#include "services/coordinator/training/job_reporter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "services/model/parameters.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

TEST(JobReporterTest, AJobRunsAsLongAsItsReporterLives) {
  Metrics registry("coordinator", "1");
  TrainingMetrics metrics(registry, /*per_expert=*/false);
  ProgressFeed feed{v1::JobProgress()};
  EXPECT_EQ(metrics.running.Value(), 0);
  auto reporter = std::make_unique<JobReporter>(TrainingJob(), &metrics, &feed);
  EXPECT_EQ(metrics.running.Value(), 1);
  reporter = nullptr;
  EXPECT_EQ(metrics.running.Value(), 0);
}

TEST(JobReporterTest, WorkWouldBeLostSinceTheLastCheckpointOrTheBegin) {
  Metrics registry("coordinator", "1");
  TrainingMetrics metrics(registry, /*per_expert=*/false);
  ProgressFeed feed{v1::JobProgress()};
  const auto long_ago = [&] { metrics.checkpoint_time.Set(1); };
  const double start = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());

  long_ago();
  JobReporter reporter(TrainingJob(), &metrics, &feed);
  EXPECT_EQ(metrics.checkpoint_time.Value(), 0);  // that of another job
  reporter.Begin(0, MonotonicTime());
  EXPECT_GE(metrics.checkpoint_time.Value(), start);
  long_ago();
  reporter.OnCheckpoint(10, "/step-10");
  EXPECT_GE(metrics.checkpoint_time.Value(), start);
  long_ago();
  reporter.Begin(10, MonotonicTime());  // another attempt, from there
  EXPECT_GE(metrics.checkpoint_time.Value(), start);
}

TEST(JobReporterTest, ExpertsAreCountedByTheirNumberInTheModel) {
  Metrics registry("coordinator", "1");
  TrainingMetrics metrics(registry, /*per_expert=*/true);
  ProgressFeed feed{v1::JobProgress()};
  const TrainingJob job;
  JobReporter reporter(job, &metrics, &feed);
  reporter.Begin(0, MonotonicTime());
  const std::string layer = MoeLayerNames(job.model).at(0);
  StepResult result;
  result.statistics.layers.resize(1);
  result.statistics.layers[0].expert_rows = {3, 4};
  reporter.OnStep(1, result, MonotonicTime() + absl::Seconds(1),
                  /*last=*/false, "");
  EXPECT_THAT(registry.Serialize(),
              HasSubstr(absl::StrCat("gshard_expert_rows_total{expert=\"1\","
                                     "experts=\"2\",layer=\"",
                                     layer, "\"} 4\n")));
}

TEST(JobReporterTest, AStepBehindASkippedOneTakesItsOwnTime) {
  Metrics registry("coordinator", "1");
  TrainingMetrics metrics(registry, /*per_expert=*/false);
  ProgressFeed feed{v1::JobProgress()};
  TrainingJob job;
  job.steps = 6;
  JobReporter reporter(job, &metrics, &feed);
  const MonotonicTime start;
  reporter.Begin(0, start);
  reporter.OnSkipped(1, start + absl::Seconds(10));
  StepResult result;
  result.statistics.target_tokens = 100;
  reporter.OnStep(2, result, start + absl::Seconds(20), /*last=*/false, "");
  EXPECT_EQ(metrics.tokens_per_second.Value(), 10);
  EXPECT_DOUBLE_EQ(reporter.progress().eta_seconds(), 40);
  EXPECT_EQ(reporter.StepsIn(105), 10);
}

}  // namespace
}  // namespace gshard
