// JobContext: the state of a job's thread across attempts, and its blocking
// operations.

#ifndef SERVICES_COORDINATOR_TRAINING_JOB_CONTEXT_H_
#define SERVICES_COORDINATOR_TRAINING_JOB_CONTEXT_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/checkpoint/folder_claim.h"
#include "services/coordinator/preparation/job_tokenizers.h"
#include "services/coordinator/training/fan_out.h"
#include "services/coordinator/training/job_mailbox.h"
#include "services/coordinator/training/job_reporter.h"
#include "services/coordinator/training/job_run.h"

namespace gshard {

// How long a job that is cancelled waits for its disk, which may hang.
inline constexpr absl::Duration kHungDiskWait = absl::Minutes(1);

// A pending result from the mailbox.
template <typename Result>
using Awaited = std::shared_ptr<std::optional<absl::StatusOr<Result>>>;

// Used only on the job's thread.
struct JobContext {
  // `feed` and `shown` outlive this.
  JobContext(JobSettings with, JobEnvironment environment, ProgressFeed* feed,
             std::shared_ptr<JobMailbox> from_others, JobStatus* shown)
      : settings(std::move(with)),
        env(std::move(environment)),
        mailbox(std::move(from_others)),
        status(shown),
        job(settings.job),
        reporter(job, env.metrics, feed),
        attempt(settings.attempt) {
    // An earlier coordinator may have set the last step, see CountStep(), and
    // then has set the cooldown as well.
    const v1::JobProgress& before = reporter.progress();
    if (before.total_steps() < job.steps) {
      job.steps = before.total_steps();
      job.schedule.cooldown_steps =
          std::min(before.cooldown_steps(), job.steps);
    }
    // An earlier coordinator's routers may have read the text.
    if (before.text_digest().empty()) return;
    text.emplace();
    text->set_pairs(before.text_pairs());
    text->set_digest(before.text_digest());
    text->set_validation_microbatches(before.held_out_microbatches());
  }

  // Processes events until `done` holds or `until` has passed. Errors:
  // Cancelled if the job is cancelled or halted; Unavailable if it is told to
  // stop, and may stop at once.
  absl::Status Await(const std::function<bool()>& done,
                     MonotonicTime until = MonotonicTime::InfiniteFuture());
  // Returns these errors of Await().
  absl::Status CheckWanted();

  // Runs `work` on the disk thread; the result arrives while this thread waits.
  template <typename Result>
  Awaited<Result> OnDisk(std::function<absl::StatusOr<Result>()> work) const;
  template <typename Result>
  absl::StatusOr<Result> AwaitDisk(
      std::function<absl::StatusOr<Result>()> work) {
    const Awaited<Result> result = OnDisk<Result>(std::move(work));
    const absl::Status wanted = Await([&] { return result->has_value(); });
    if (!wanted.ok()) return wanted;
    return *std::move(*result);
  }

  // Waits for work of the disk thread that ends soon, whatever happens
  // meanwhile. False if it has not ended, and its results will not arrive: the
  // job is halted, or is cancelled and has waited for kHungDiskWait.
  bool AwaitEnd(const std::function<bool()>& ended);
  // Removes the files of abandoned_step: members may write to it until they
  // have released their sessions.
  void RemoveAbandoned();

  // As FanOut(); replies arrive while this thread waits.
  std::shared_ptr<const MemberReplies> Send(
      MemberCommands commands,
      absl::Duration more = absl::ZeroDuration()) const {
    return FanOut(*env.members, mailbox, std::move(commands), more);
  }

  // The current members, without routers that want to leave: for jobs these are
  // lost at once.
  std::set<MemberKey> Members() const;
  // Those that an attempt may use: neither members that want to leave nor those
  // that are unfit.
  std::vector<Member> Usable(MemberRole role) const;

  // Publishes the job's state and attempt.
  void SetState(v1::JobState state, const absl::Status& why = {},
                bool retryable = false);

  std::string session() const;  // "job/attempt"
  // This process's memory for dense parameters; 0: unknown, or routers hold
  // them.
  int64_t DenseMemory() const {
    return settings.reduce == ReduceWay::kCoordinator ? env.memory_bytes : 0;
  }
  // The state of a job that is not loaded: waiting, or recovering once it has
  // begun.
  v1::JobState waiting_state() const {
    return begun ? v1::JOB_STATE_RECOVERING : v1::JOB_STATE_WAITING;
  }

  const JobSettings settings;
  const JobEnvironment env;
  const std::shared_ptr<JobMailbox> mailbox;
  JobStatus* const status;

  std::shared_ptr<FolderClaim> claim;  // from before the job is prepared
  // Set once the job is prepared: see PreparedJob.
  TrainingJob job;
  JobTokenizers tokenizers;
  absl::Duration time_to_index;

  JobReporter reporter;
  int64_t attempt;
  // All that the job asks for have loaded it once, here or under an earlier
  // coordinator: from then on it goes on with fewer.
  bool begun = false;
  // Members that could not load an attempt: later ones do without them. One
  // that rejoins is asked again.
  std::set<MemberKey> unfit;
  // Routers that could not load while others were there: they are asked again,
  // and fail no attempt until they have loaded.
  std::set<MemberKey> unfit_routers;
  // The text that the job's first router has read; nothing from older releases.
  std::optional<v1::TextLoaded> text;
  std::string checkpoint_path;  // the last one written
  int64_t checkpoint_step = 0;  // its step
  int64_t abandoned_step = 0;   // the last one that was given up
  int64_t nonfinite_in_a_row = 0;
  // Whether the job may stop at once; otherwise its thread checks
  // mailbox->stopping() where it can.
  bool stops_at_once = true;
  bool stopped = false;  // because it was told to
  // Until when a cancelled job waits for its disk.
  MonotonicTime disk_wait_end = MonotonicTime::InfiniteFuture();
};

template <typename Result>
Awaited<Result> JobContext::OnDisk(
    std::function<absl::StatusOr<Result>()> work) const {
  auto result = std::make_shared<std::optional<absl::StatusOr<Result>>>();
  env.on_disk([result, mailbox = mailbox, work = std::move(work)]() mutable {
    auto made = std::make_shared<absl::StatusOr<Result>>(work());
    work = nullptr;  // releases a claim: the job may end with this
    mailbox->Post(
        [result, made = std::move(made)] { *result = std::move(*made); });
  });
  return result;
}

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_TRAINING_JOB_CONTEXT_H_
