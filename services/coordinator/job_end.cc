// The end of a JobRunner: serving what was trained, and all that ends it
// earlier.

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/coordinator/job_runner.h"

namespace gshard {

void JobRunner::Serve() {
  phase_ = Phase::kServing;
  if (job_.serve_as.empty() || stop_) return Finish(v1::JOB_STATE_SUCCEEDED);
  MemberCommands unload;
  for (auto& [key, command] : Abort()) {
    unload.emplace_back(key, v1::Command());
    unload.back().second.mutable_unload_session()->set_session(session_);
  }
  Tell(*env_.members, std::move(unload));
  Forget();
  const auto done = [this, still = StillThisAttempt()](const absl::Status& s) {
    if (!still()) return;
    if (s.ok()) return Finish(v1::JOB_STATE_SUCCEEDED);
    Finish(v1::JOB_STATE_FAILED,
           Annotate(s, absl::StrCat("trained to ", checkpoint_path_,
                                    ", but it cannot be served")));
  };
  env_.serve(checkpoint_path_, done);
}

void JobRunner::Cancel() {
  if (phase_ != Phase::kEnded) Finish(v1::JOB_STATE_CANCELLED);
}

void JobRunner::Stop() {
  stop_ = true;
  if (phase_ == Phase::kEnded || phase_ == Phase::kMicrobatches ||
      phase_ == Phase::kPreparing || phase_ == Phase::kCommitting ||
      phase_ == Phase::kValidating || phase_ == Phase::kCheckpointing ||
      phase_ == Phase::kRescuing || phase_ == Phase::kServing) {
    return;
  }
  if (!settings_.durable) return Cancel();
  Finish(v1::JOB_STATE_QUEUED,
         absl::UnavailableError("the coordinator is shutting down"));
}

MemberCommands JobRunner::Abort() const {
  MemberCommands commands;
  const auto add = [&](const MemberKey& key) {
    commands.emplace_back(key, v1::Command());
    commands.back().second.mutable_abort_session()->set_session(session_);
  };
  for (const MemberKey& worker : plan_.workers) add(worker);
  for (const auto& [router, state] : routers_) add(router);
  return commands;
}

void JobRunner::Forget() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    dense_ = nullptr;
    loaded_.reset();
    ready_routers_.clear();
    plan_ = {};
  }
  routers_.clear();
  reduction_ = nullptr;
  microbatches_ = nullptr;
  checkpoint_ = nullptr;
  gradients_.clear();
}

void JobRunner::End() {
  stop_preparing_.request_stop();
  Tell(*env_.members, Abort());
  DropCheckpoint();
  phase_ = Phase::kEnded;
  Forget();
  claim_ = nullptr;
}

void JobRunner::Finish(v1::JobState state, const absl::Status& status) {
  if (state == v1::JOB_STATE_FAILED) {
    return Fail(status, IsPassing(status) && !absl::IsNotFound(status));
  }
  End();
  LogInfo("job ends", {{"job", job_.name},
                       {"state", v1::JobState_Name(state)},
                       {"checkpoint", checkpoint_path_}});
  SetState(state, status, /*retryable=*/absl::IsUnavailable(status));
  reporter_ = nullptr;
}

void JobRunner::Fail(const absl::Status& status, bool retryable) {
  End();
  LogError("job failed", {{"job", job_.name},
                          {"status", status},
                          {"retryable", retryable ? "yes" : "no"}});
  SetState(v1::JOB_STATE_FAILED, status, retryable);
  reporter_ = nullptr;
}

}  // namespace gshard
