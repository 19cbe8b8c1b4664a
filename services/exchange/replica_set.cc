#include "services/exchange/replica_set.h"

#include <algorithm>
#include <atomic>
#include <list>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gshard {

using Clock = std::chrono::steady_clock;

namespace {

constexpr std::chrono::seconds kLookInterval{1};

}  // namespace

// Shared with the replies, which may come after the set is gone.
struct ReplicaSet::Pings {
  struct Sent {
    std::shared_ptr<WorkerStub> stub;
    uint64_t call_id = 0;
    Clock::time_point deadline;
    std::shared_ptr<std::atomic<bool>> answered;
  };

  std::mutex mutex;
  std::condition_variable changed;
  std::list<Sent> sent;   // guarded by mutex
  bool woken = false;     // guarded by mutex
  bool stopping = false;  // guarded by mutex

  void Wake() {
    std::lock_guard<std::mutex> lock(mutex);
    woken = true;
    changed.notify_all();
  }
};

ReplicaSet::ReplicaSet(int64_t num_experts, Group group,
                       ExchangeMetrics metrics)
    : ExchangePolicy(num_experts, std::move(metrics)),
      pings_(std::make_shared<Pings>()),
      group_(std::move(group)),
      thread_([this] { RunPings(); }) {}

ReplicaSet::~ReplicaSet() {
  {
    std::lock_guard<std::mutex> lock(pings_->mutex);
    pings_->stopping = true;
    pings_->changed.notify_all();
  }
  thread_.join();
}

ReplicaSet::Group ReplicaSet::group() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return group_;
}

void ReplicaSet::Update(Group group) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (group->version < group_->version) return;
    group_.swap(group);
  }
  pings_->Wake();
}

int64_t ReplicaSet::live_experts() const {
  const Group group = this->group();
  std::vector<bool> live(num_experts(), false);
  for (const ReplicaHolding& holding : group->holdings) {
    if (holding.stub->state().health() == WorkerHealth::State::kFailed) {
      continue;
    }
    for (const int32_t expert : holding.experts) live[expert] = true;
  }
  return std::count(live.begin(), live.end(), true);
}

void ReplicaSet::OnCall() {
  std::lock_guard<std::mutex> lock(mutex_);
  budget_.OnCall();
}

ReplicaSet::Time ReplicaSet::LateAt(const ReplicaHolding& holding, int64_t rows,
                                    Time now) {
  return now + holding.stub->state().Health([rows](WorkerHealth& health) {
    return health.HedgeDelay(rows);
  });
}

Late ReplicaSet::OnLate(const ReplicaHolding& holding, bool again,
                        bool others_asked, Time now) {
  WorkerState& state = holding.stub->state();
  if (!again) {
    Avoid(holding, state.Health([now](WorkerHealth& health) {
      return health.OnSilence(now);
    }));
  } else if (state.health() == WorkerHealth::State::kFailed) {
    return Late::kGiveUp;
  }
  if (others_asked) return Late::kWait;
  std::lock_guard<std::mutex> lock(mutex_);
  return budget_.Take() ? Late::kAskOthersToo : Late::kWait;
}

void ReplicaSet::OnReply(const ReplicaHolding& holding, int64_t rows,
                         std::chrono::microseconds latency) {
  holding.stub->state().Health(
      [&](WorkerHealth& health) { health.OnReply(rows, latency); });
}

absl::Status ReplicaSet::OnFailure(const ReplicaHolding& holding,
                                   const absl::Status& why) {
  const bool full = absl::IsResourceExhausted(why);
  // A session that is gone says nothing against the worker's others.
  if (absl::IsNotFound(why) || absl::IsCancelled(why)) return absl::OkStatus();
  if (!full && !absl::IsUnavailable(why)) return why;
  Avoid(holding, holding.stub->state().Health([full](WorkerHealth& health) {
    return full ? health.OnSilence(Clock::now())
                : health.OnFailure(Clock::now());
  }));
  return absl::OkStatus();
}

absl::Status ReplicaSet::OnNoHolder(absl::Span<const int32_t>,
                                    const absl::Status& why) {
  if (absl::IsResourceExhausted(why)) return why;
  if (live_experts() > 0) return absl::OkStatus();
  return absl::UnavailableError("no expert worker of the model is left");
}

void ReplicaSet::Avoid(const ReplicaHolding& holding, bool changed) {
  if (changed) metrics().worker_ejections.With({holding.worker}).Increment();
  pings_->Wake();
}

void ReplicaSet::Ping(const std::shared_ptr<Pings>& pings,
                      const ReplicaHolding& holding) {
  auto answered = std::make_shared<std::atomic<bool>>(false);
  holding.stub->state().Health(
      [](WorkerHealth& health) { health.OnProbeSent(); });
  const uint64_t call_id = holding.stub->Ping(
      holding.session,
      [pings, answered,
       // Not the stub, which the callback would keep alive.
       state = holding.stub->shared_state()](const auto& reply) {
        if (answered->exchange(true)) return;
        // One that has released the session, since the placement has changed,
        // is there as well.
        const bool there = reply.ok() || absl::IsNotFound(reply.status());
        state->Health([&](WorkerHealth& health) {
          health.OnProbeReply(Clock::now(), there);
        });
        pings->Wake();
      });
  std::lock_guard<std::mutex> lock(pings->mutex);
  pings->sent.push_back({.stub = holding.stub,
                         .call_id = call_id,
                         .deadline = Clock::now() + kPingTimeout,
                         .answered = std::move(answered)});
}

void ReplicaSet::RunPings() {
  std::unique_lock<std::mutex> lock(pings_->mutex);
  while (true) {
    const Clock::time_point now = Clock::now();
    // Other models share the workers: what they find is not told to this one,
    // and what they have begun may go with them.
    Clock::time_point next = now + kLookInterval;
    // Those whose time is up.
    std::list<Pings::Sent> late;
    for (auto it = pings_->sent.begin(); it != pings_->sent.end();) {
      const auto sent = it++;
      if (*sent->answered) {
        pings_->sent.erase(sent);
      } else if (sent->deadline <= now || pings_->stopping) {
        late.splice(late.end(), pings_->sent, sent);
      } else {
        next = std::min(next, sent->deadline);
      }
    }
    const bool stopping = pings_->stopping;
    pings_->woken = false;
    lock.unlock();
    for (const Pings::Sent& sent : late) {
      sent.stub->Cancel(sent.call_id);
      if (sent.answered->exchange(true)) continue;
      sent.stub->state().Health([&](WorkerHealth& health) {
        // A set that goes knows nothing of the worker.
        health.OnProbeReply(now, /*ok=*/stopping);
      });
    }
    late.clear();  // stubs go without the lock
    if (stopping) return;
    const Group group = this->group();
    for (const ReplicaHolding& holding : group->holdings) {
      const Clock::time_point due = holding.stub->state().Health(
          [](WorkerHealth& health) { return health.next_probe(); });
      if (due <= now) {
        Ping(pings_, holding);
        next = std::min(next, now + kPingTimeout);
      } else {
        next = std::min(next, due);
      }
    }
    lock.lock();
    const auto woken = [this] { return pings_->woken || pings_->stopping; };
    pings_->changed.wait_until(lock, next, woken);
  }
}

absl::Status ReplicaSet::Verify(const ReplicaGroup& group,
                                std::chrono::milliseconds timeout) {
  struct Answers {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<absl::Status> status;
    size_t missing = 0;
  };
  const auto answers = std::make_shared<Answers>();
  const size_t count = group.holdings.size();
  answers->status.assign(
      count, absl::DeadlineExceededError("it has not answered a ping"));
  answers->missing = count;
  std::vector<uint64_t> ids;
  for (size_t i = 0; i < count; ++i) {
    ids.push_back(group.holdings[i].stub->Ping(
        group.holdings[i].session, [answers, i](const auto& reply) {
          std::lock_guard<std::mutex> lock(answers->mutex);
          answers->status[i] = reply.status();
          --answers->missing;
          answers->changed.notify_all();
        }));
  }
  std::vector<absl::Status> status;
  {
    std::unique_lock<std::mutex> lock(answers->mutex);
    answers->changed.wait_for(lock, timeout,
                              [&] { return answers->missing == 0; });
    status = answers->status;
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
    // One that lacks the session is there, also for other models.
    if (!absl::IsNotFound(status[i])) {
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
