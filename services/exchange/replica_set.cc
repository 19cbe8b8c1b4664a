#include "services/exchange/replica_set.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/base/log_budget.h"
#include "services/base/retry_delay.h"

namespace gshard {

using Clock = std::chrono::steady_clock;

namespace {

constexpr std::chrono::seconds kProbeInterval{1};

constexpr int64_t kFailureLinesPerSecond = 5;

void LogFailure(const std::string& worker, const absl::Status& why) {
  static LogBudget& budget = *new LogBudget(kFailureLinesPerSecond);
  const auto left_out = budget.Take();
  if (!left_out.has_value()) return;
  LogWarning(
      "an expert worker is avoided",
      {{"worker", worker}, {"reason", why}, {"lines_left_out", *left_out}});
}

std::shared_ptr<void> ShowWorkers(const ReplicaGroup& group,
                                  const ExchangeMetrics& metrics) {
  std::set<std::string> workers;
  for (const ReplicaHolding& holding : group.holdings) {
    workers.insert(holding.worker);
  }
  return metrics.workers->Show(std::move(workers));
}

}  // namespace

ReplicaSet::ReplicaSet(int64_t num_experts, Group group,
                       ExchangeMetrics metrics)
    : ExchangePolicy(num_experts, std::move(metrics)),
      group_(std::move(group)),
      shown_(ShowWorkers(*group_, this->metrics())),
      least_version_(group_->version),
      thread_([this] { RunPings(); }) {}

ReplicaSet::~ReplicaSet() {
  pings_->Stop();
  thread_.join();
}

ReplicaSet::Group ReplicaSet::group() const {
  MutexLock lock(mutex_);
  return group_;
}

WorkerHealth::State ReplicaSet::StateOf(const ReplicaHolding& holding) const {
  const WorkerHealth::State state = ExchangePolicy::StateOf(holding);
  MutexLock lock(mutex_);
  return missing_.contains({holding.stub.get(), holding.session})
             ? std::max(state, WorkerHealth::State::kSlow)
             : state;
}

absl::Status ReplicaSet::Update(Group group) {
  std::shared_ptr<void> shown = ShowWorkers(*group, metrics());
  {
    MutexLock lock(mutex_);
    if (group->version < least_version_) {
      return absl::FailedPreconditionError(
          absl::StrCat("placement.version: expected at least ", least_version_,
                       ", got ", group->version));
    }
    least_version_ = group->version;
    missing_.clear();
    group_.swap(group);
    shown_.swap(shown);
  }
  pings_->Wake();
  return absl::OkStatus();
}

void ReplicaSet::AcceptAnyVersion() {
  MutexLock lock(mutex_);
  least_version_ = std::numeric_limits<int64_t>::min();
}

int64_t ReplicaSet::live_experts() const {
  Group group;
  std::vector<bool> live(num_experts(), false);
  std::map<std::pair<const WorkerStub*, std::string>, Time> missing;
  {
    MutexLock lock(mutex_);
    group = group_;
    missing = missing_;
  }
  for (const ReplicaHolding& holding : group->holdings) {
    if (holding.stub->state().health() == WorkerHealth::State::kFailed ||
        missing.contains({holding.stub.get(), holding.session})) {
      continue;
    }
    for (const int32_t expert : holding.experts) live[expert] = true;
  }
  return std::count(live.begin(), live.end(), true);
}

void ReplicaSet::OnCall() {
  MutexLock lock(mutex_);
  budget_.OnCall();
}

ReplicaSet::Time ReplicaSet::LateAt(const ReplicaHolding& holding, int64_t rows,
                                    Time now) {
  return now + holding.stub->state().Health([rows](WorkerHealth& health) {
    return health.HedgeDelay(rows);
  });
}

LateAction ReplicaSet::OnLate(const ReplicaHolding& holding, Time since,
                              bool others_asked, Time now) {
  WorkerState& state = holding.stub->state();
  if (since == now) {
    Avoid(holding, state.Health([now](WorkerHealth& health) {
      return health.OnSilence(now);
    }));
  } else if (state.health() == WorkerHealth::State::kFailed) {
    return LateAction::kGiveUp;
  } else if (state.Health([now](WorkerHealth& health) {
               return health.OnLongSilence(now);
             })) {
    pings_->Wake();
  }
  if (others_asked) return LateAction::kWait;
  // The budget bounds what hedges cost, not how long a call may take.
  if (now - since >= kPingTimeout) return LateAction::kHedge;
  MutexLock lock(mutex_);
  return budget_.Allows() ? LateAction::kHedge : LateAction::kWait;
}

void ReplicaSet::OnUnanswered(const ReplicaHolding& holding, Time now) {
  Avoid(holding, holding.stub->state().Health([now](WorkerHealth& health) {
    return health.OnUnanswered(now);
  }));
}

void ReplicaSet::OnHedge() {
  MutexLock lock(mutex_);
  budget_.Take();
}

void ReplicaSet::OnReply(const ReplicaHolding& holding, int64_t rows,
                         std::chrono::microseconds latency) {
  holding.stub->state().Health(
      [&](WorkerHealth& health) { health.OnReply(rows, latency); });
}

absl::Status ReplicaSet::OnFailure(const ReplicaHolding& holding,
                                   const absl::Status& why) {
  const bool full = absl::IsResourceExhausted(why);
  // A missing session does not count against the worker's other sessions.
  if (absl::IsNotFound(why)) {
    NoteSession(holding.stub.get(), holding.session, /*is_there=*/false);
    return absl::OkStatus();
  }
  if (absl::IsCancelled(why)) return absl::OkStatus();
  if (!full && !absl::IsUnavailable(why)) return why;
  // Without a delay the call is too long: a worker with other limits may take
  // it, but this one is as good as before for others.
  if (full && !RetryDelay(why).has_value()) return absl::OkStatus();
  const bool changed =
      holding.stub->state().Health([full](WorkerHealth& health) {
        return full ? health.OnSilence(Clock::now())
                    : health.OnFailure(Clock::now());
      });
  if (changed && !full) LogFailure(holding.worker, why);
  Avoid(holding, changed);
  return absl::OkStatus();
}

absl::Status ReplicaSet::OnNoHolder(absl::Span<const int32_t>,
                                    const absl::Status& why) {
  if (absl::IsResourceExhausted(why)) return why;
  if (live_experts() > 0) return absl::OkStatus();
  return absl::UnavailableError("no expert worker of the model is left");
}

void ReplicaSet::NoteSession(const WorkerStub* stub, const std::string& session,
                             bool is_there) {
  MutexLock lock(mutex_);
  // Calls end also of placements before this one.
  const bool held = std::any_of(
      group_->holdings.begin(), group_->holdings.end(),
      [&](const ReplicaHolding& holding) {
        return holding.stub.get() == stub && holding.session == session;
      });
  if (is_there || !held) {
    missing_.erase({stub, session});
  } else {
    missing_.try_emplace({stub, session}, Clock::now() + kProbeInterval);
  }
}

ReplicaSet::Time ReplicaSet::NextAsk(const ReplicaHolding& holding, Time now) {
  MutexLock lock(mutex_);
  const auto found = missing_.find({holding.stub.get(), holding.session});
  if (found == missing_.end()) return Time::max();
  const Time ask = found->second;
  if (ask <= now) found->second = now + kProbeInterval;
  return ask;
}

void ReplicaSet::Avoid(const ReplicaHolding& holding, bool changed) {
  if (changed) metrics().workers->CountEjection(holding.worker);
  pings_->Wake();
}

uint64_t ReplicaSet::Ping(const ReplicaHolding& holding,
                          std::shared_ptr<ReplyMailbox> mailbox,
                          int64_t number) {
  return holding.stub->Ping(
      holding.session, [mailbox = std::move(mailbox), number](auto reply) {
        mailbox->Put({number, std::move(reply), Clock::now()});
      });
}

void ReplicaSet::RunPings() {
  struct Sent {
    std::shared_ptr<WorkerStub> stub;
    std::string worker;
    std::string session;
    bool is_probe = false;  // of the worker; else only of the session
    uint64_t call_id = 0;
    Time deadline;

    void Tell(bool there, const absl::Status& answer) const {
      if (!is_probe) return;
      const bool failed = stub->state().Health([there](WorkerHealth& health) {
        return health.OnProbeReply(Clock::now(), there);
      });
      if (failed) LogFailure(worker, answer);
    }
  };
  std::map<int64_t, Sent> unanswered;
  int64_t number = 0;
  Time next = Clock::now();
  while (const auto replies = pings_->WaitUntil(next)) {
    for (const ReplyMailbox::Reply& reply : *replies) {
      const auto sent = unanswered.find(reply.number);
      if (sent == unanswered.end()) continue;
      // NOT_FOUND also proves that the worker is alive: it has released the
      // session since the placement has changed.
      const absl::Status& status = reply.tensors.status();
      const bool is_alive = status.ok() || absl::IsNotFound(status);
      sent->second.Tell(is_alive, status);
      if (is_alive) {
        NoteSession(sent->second.stub.get(), sent->second.session, status.ok());
      }
      unanswered.erase(sent);
    }
    const Time now = Clock::now();
    std::erase_if(unanswered, [now](const auto& entry) {
      const Sent& sent = entry.second;
      if (sent.deadline > now) return false;
      sent.stub->Cancel(sent.call_id);
      sent.Tell(/*there=*/false,
                absl::DeadlineExceededError("it does not answer pings"));
      return true;
    });
    // Look again soon: sets of other models share the workers' state, do not
    // notify this set of changes, and may be destroyed with a ping outstanding.
    next = now + kProbeInterval;
    const Group group = this->group();
    for (const ReplicaHolding& holding : group->holdings) {
      const Time probe =
          holding.stub->state().Health([now](WorkerHealth& health) {
            const Time probe = health.next_probe();
            if (probe <= now) health.OnProbeSent();
            return probe;
          });
      const Time due = std::min(probe, NextAsk(holding, now));
      if (due > now) {
        next = std::min(next, due);
        continue;
      }
      const uint64_t id = Ping(holding, pings_, ++number);
      unanswered[number] = {.stub = holding.stub,
                            .worker = holding.worker,
                            .session = holding.session,
                            .is_probe = probe <= now,
                            .call_id = id,
                            .deadline = now + kPingTimeout};
    }
    for (const auto& [of, sent] : unanswered) {
      next = std::min(next, sent.deadline);
    }
  }
  // What is not known yet other sets, of other models, will ask.
  for (const auto& [of, sent] : unanswered) {
    sent.stub->Cancel(sent.call_id);
    if (!sent.is_probe) continue;
    sent.stub->state().Health(
        [](WorkerHealth& health) { health.OnProbeDropped(); });
  }
}

absl::Status ReplicaSet::Verify(const ReplicaGroup& group,
                                std::chrono::milliseconds timeout) {
  const Time deadline = Clock::now() + timeout;
  const auto mailbox = std::make_shared<ReplyMailbox>();
  const size_t count = group.holdings.size();
  std::vector<absl::Status> status(
      count, absl::DeadlineExceededError("it has not answered a ping"));
  std::vector<uint64_t> ids;
  for (const ReplicaHolding& holding : group.holdings) {
    ids.push_back(Ping(holding, mailbox, static_cast<int64_t>(ids.size())));
  }
  for (size_t missing = count; missing > 0 && Clock::now() < deadline;) {
    const auto replies = mailbox->WaitUntil(deadline);
    for (const ReplyMailbox::Reply& reply : *replies) {
      status[reply.number] = reply.tensors.status();
      --missing;
    }
  }
  std::vector<bool> placed(num_experts(), false), live(num_experts(), false);
  absl::Status error;
  for (size_t i = 0; i < count; ++i) {
    const ReplicaHolding& holding = group.holdings[i];
    holding.stub->Cancel(ids[i]);
    for (const int32_t expert : holding.experts) {
      placed[expert] = true;
      live[expert] = live[expert] || status[i].ok();
    }
    if (status[i].ok()) continue;
    // A worker that lacks the session is alive, also for other models.
    if (absl::IsNotFound(status[i])) {
      NoteSession(holding.stub.get(), holding.session, /*is_there=*/false);
    } else {
      holding.stub->state().Health(
          [](WorkerHealth& health) { health.OnFailure(Clock::now()); });
    }
    error = absl::UnavailableError(
        absl::StrCat("expert worker '", holding.worker,
                     "' at hand cannot be reached: ", status[i].message()));
  }
  pings_->Wake();
  return placed == live ? absl::OkStatus() : error;
}

}  // namespace gshard
