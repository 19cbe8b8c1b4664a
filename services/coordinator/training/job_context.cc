#include "services/coordinator/training/job_context.h"

#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/checkpoint/checkpoint.h"

namespace gshard {

absl::Status JobContext::CheckWanted() {
  if (mailbox->halted() || mailbox->cancelled()) {
    return absl::CancelledError("the job is not wanted any more");
  }
  if (!mailbox->stopping() || !stops_at_once) return absl::OkStatus();
  stopped = true;
  return absl::UnavailableError("the coordinator is shutting down");
}

absl::Status JobContext::Await(const std::function<bool()>& done,
                               MonotonicTime until) {
  while (true) {
    const absl::Status wanted = CheckWanted();
    if (!wanted.ok() || done() || env.clock() >= until) return wanted;
    mailbox->Next(until);
  }
}

bool JobContext::AwaitEnd(const std::function<bool()>& ended) {
  while (!ended()) {
    if (mailbox->halted()) return false;
    const MonotonicTime now = env.clock();
    if (mailbox->cancelled()) {
      disk_wait_end = std::min(disk_wait_end, now + kHungDiskWait);
    }
    if (now < disk_wait_end) {
      mailbox->Next(disk_wait_end);
      continue;
    }
    if (disk_wait_end != MonotonicTime::InfinitePast()) {
      LogError("the disk of a job that is cancelled hangs",
               {{"job", job.name}, {"directory", job.checkpoint.directory}});
      disk_wait_end = MonotonicTime::InfinitePast();  // it has been said
    }
    return false;
  }
  return true;
}

void JobContext::RemoveAbandoned() {
  const auto removed = OnDisk<bool>(
      [root = job.checkpoint.directory, step = abandoned_step, claim = claim] {
        (void)AbandonCheckpoint(root, step, claim.get());
        return true;
      });
  AwaitEnd([&] { return removed->has_value(); });
}

std::set<MemberKey> JobContext::Members() const {
  std::set<MemberKey> keys;
  for (const Member& member : env.members->List()) {
    const bool is_router = member.info.role == MemberRole::kRouter;
    if (!is_router || !member.leaving) keys.insert(KeyOf(member));
  }
  return keys;
}

std::vector<Member> JobContext::Usable(MemberRole role) const {
  std::vector<Member> usable = role == MemberRole::kExpertWorker
                                   ? env.members->Workers()
                                   : env.members->Routers();
  std::erase_if(usable, [&](const Member& member) {
    return unfit.contains(KeyOf(member));
  });
  return usable;
}

void JobContext::SetState(v1::JobState state, const absl::Status& why,
                          bool retryable) {
  const v1::JobProgress& progress = reporter.progress();
  const bool changed =
      progress.state() != state || progress.attempt() != attempt;
  if (progress.attempt() != attempt) reporter.OnAttempt(attempt);
  reporter.SetState(state, why, retryable);
  // Published state must survive a restart.
  if (changed) env.on_change(reporter.progress());
  reporter.Publish();
}

std::string JobContext::session() const {
  return absl::StrCat(job.name, "/", attempt);
}

}  // namespace gshard
