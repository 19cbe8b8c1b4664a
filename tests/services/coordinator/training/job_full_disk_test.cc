// The disk becomes full at some change while a job writes checkpoints.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "services/checkpoint/checkpoint_folder.h"
#include "tests/services/coordinator/fake_cluster.h"
#include "tests/services/coordinator/fake_job.h"
#include "tests/services/storage/disk_faults.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

TEST(JobFullDiskTest, AFullDiskIsAClearErrorAndNothingIsLost) {
  bool failed = true;
  // Not every change is tried, because each takes a fraction of a second.
  for (int point = 0; failed; point += 7) {
    SCOPED_TRACE(point);
    FullDisk disk(point);
    TrainingJob job;
    FakeCluster resumed;
    {
      FakeCluster cluster({.faults = &disk});
      job = cluster.MakeJob();
      job.steps = 5;
      job.checkpoint.every_steps = 2;
      job.recovery.replacement_wait_ms = 0;
      job.checkpoint.directory = resumed.scratch / "demo";
      job.data.train_path = resumed.MakeJob().data.train_path;
      cluster.AddRouter("r");
      cluster.AddWorker("w");
      ASSERT_OK(cluster.Submit(job));
      const v1::JobProgress last = cluster.Watch("demo").back();
      failed = last.state() == v1::JOB_STATE_FAILED;
      if (failed) {
        EXPECT_EQ(last.status().code(),
                  static_cast<int>(absl::StatusCode::kResourceExhausted));
        EXPECT_THAT(last.status().message(),
                    HasSubstr("No space left on device"));
        EXPECT_THAT(last.status().message(),
                    HasSubstr(job.checkpoint.directory));
      }
    }
    // If only the sync of the folder failed, the last checkpoint is complete.
    if (failed && !IsDirectory(CheckpointPath(job.checkpoint.directory, 5))) {
      resumed.AddRouter("r");
      resumed.AddWorker("w");
      ASSERT_OK(resumed.Submit(job, /*resume=*/true));
      EXPECT_EQ(resumed.Watch("demo").back().state(), v1::JOB_STATE_SUCCEEDED);
    }
    for (const int64_t step : {2, 4, 5}) ExpectTrained(job, step);
  }
}

}  // namespace
}  // namespace gshard
