// The coordinator's process dies while it writes a checkpoint, and the resumed
// job has the same bits. This test comes first in its program, because a
// process that has used gRPC must not fork.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "services/checkpoint/checkpoint_folder.h"
#include "tests/services/coordinator/fake_cluster.h"
#include "tests/services/coordinator/fake_job.h"
#include "tests/services/storage/disk_faults.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

constexpr int kDone = 3;
constexpr int kKilled = 4;

// Runs `work` in a child process; -1 if that ended in an unknown way.
int ExitCodeOf(const std::function<void()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    work();
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return kKilled;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(JobDeathTest, TheCoordinatorDiesAtAnyChangeOfTheDisk) {
  FakeTokenizerPath();  // once for all
  int code = 0;
  for (int point = 0; code != kDone; point += 5) {
    SCOPED_TRACE(point);
    ScratchDirectory scratch;
    const auto train = [&](FaultPoints* faults) {
      FakeCluster cluster({.faults = faults});
      TrainingJob job = cluster.MakeJob();
      job.steps = 5;
      job.checkpoint.every_steps = 2;
      job.checkpoint.directory = scratch / "demo";
      job.data.train_path = scratch / "train.tsv";
      Spill(job.data.train_path, "de\teins\tone\nde\tzwei\ttwo\n");
      cluster.AddRouter("r");
      cluster.AddWorker("w");
      // If it died after the commit of the last checkpoint, the job is done.
      if (!IsDirectory(CheckpointPath(job.checkpoint.directory, 5))) {
        ASSERT_OK(cluster.Submit(job, /*resume=*/true));
        EXPECT_EQ(cluster.Watch("demo").back().state(),
                  v1::JOB_STATE_SUCCEEDED);
      }
      for (const int64_t step : {2, 4, 5}) ExpectTrained(job, step);
    };
    code = ExitCodeOf([&] {
      DeadProcess death(point);
      train(&death);
      ::_exit(::testing::Test::HasFailure() ? 1 : kDone);
    });
    if (code == kDone) break;
    ASSERT_EQ(code, kKilled);
    ASSERT_EQ(ExitCodeOf([&] { train(nullptr); }), 0);
  }
}

}  // namespace
}  // namespace gshard
