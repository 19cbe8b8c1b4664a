// LimitedJob: a job of 1,000 steps that a time limit of 60 seconds ends, in a
// cluster whose clock only advances when a step is committed.

#ifndef TESTS_SERVICES_COORDINATOR_LIMITED_JOB_H_
#define TESTS_SERVICES_COORDINATOR_LIMITED_JOB_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <utility>

#include "tests/services/coordinator/fake_cluster.h"
#include "tests/services/coordinator/moment.h"
#include "tests/testing/status_matchers.h"

namespace gshard {

class LimitedJob {
 public:
  // Step `step` takes seconds_of(step) seconds.
  explicit LimitedJob(std::function<int64_t(int64_t step)> seconds_of,
                      bool keep = false)
      : seconds_of_(std::move(seconds_of)),
        cluster({.lease = absl::Hours(24),
                 .clock =
                     [this] {
                       return MonotonicTime() + absl::Seconds(seconds_.load());
                     }},
                keep),
        job(cluster.MakeJob()) {
    job.steps = 1000;
    job.time_limit_seconds = 60;
    job.recovery.replacement_wait_ms = 0;
  }

  // Submits the job and returns its last progress. The coordinator is restarted
  // before the worker does its command at `restart_at`, if there is one; the
  // cluster must keep its state then.
  v1::JobProgress Train(const Moment& restart_at = nullptr) {
    cluster.AddRouter("r");
    cluster.AddWorker(
        "w",
        [this,
         restart_at](const v1::Command& c) -> std::optional<v1::CommandReply> {
          if (c.has_commit_step()) {
            seconds_ += seconds_of_(c.commit_step().step());
          }
          if (restart_at && restart_at(c) && first_.exchange(false)) {
            reached_.set_value();
            may_go_on_.wait();
          }
          return std::nullopt;
        });
    EXPECT_OK(cluster.Submit(job));
    if (restart_at) {
      reached_.get_future().wait();
      cluster.RestartCoordinator();
      go_on_.set_value();
    }
    const v1::JobProgress last = cluster.Watch("demo").back();
    EXPECT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
    return last;
  }

 private:
  const std::function<int64_t(int64_t)> seconds_of_;
  std::atomic<int64_t> seconds_{1000};
  std::atomic<bool> first_{true};
  std::promise<void> reached_, go_on_;
  std::shared_future<void> may_go_on_ = go_on_.get_future().share();

 public:
  FakeCluster cluster;
  TrainingJob job;
};

}  // namespace gshard

#endif  // TESTS_SERVICES_COORDINATOR_LIMITED_JOB_H_
