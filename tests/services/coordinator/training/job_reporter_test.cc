#include "services/coordinator/training/job_reporter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

namespace gshard {
namespace {

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

}  // namespace
}  // namespace gshard
