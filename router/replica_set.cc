#include "router/replica_set.h"

#include <algorithm>
#include <atomic>
#include <list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"

namespace gshard {

using Clock = std::chrono::steady_clock;

namespace {

constexpr std::chrono::seconds kLookInterval{1};

}  // namespace

absl::StatusOr<std::shared_ptr<const ReplicaGroup>> ConnectReplicas(
    const v1::Placement& placement, const std::string& session,
    int64_t num_experts, WorkerConnections& connections) {
  auto group = std::make_shared<ReplicaGroup>();
  group->version = placement.version();
  for (int w = 0; w < placement.workers_size(); ++w) {
    const v1::WorkerPlacement& worker = placement.workers(w);
    const std::string field = absl::StrCat("placement.workers[", w, "]");
    int64_t previous = -1;
    for (const int32_t expert : worker.experts()) {
      if (expert <= previous || expert >= num_experts) {
        return absl::InvalidArgumentError(
            absl::StrCat(field, ".experts: expected ascending experts below ",
                         num_experts, ", got ", expert, " after ", previous));
      }
      previous = expert;
    }
    auto connection =
        connections.Get(worker.name(), worker.address(), worker.incarnation());
    if (!connection.ok()) {
      return Annotate(connection.status(), field + ".address");
    }
    group->holdings.push_back(
        {.worker = worker.name(),
         .session = worker.session().empty() ? session : worker.session(),
         .experts = {worker.experts().begin(), worker.experts().end()},
         .connection = *std::move(connection)});
  }
  return group;
}

// Shared with the replies, which may come after the set is gone.
struct ReplicaSet::Pings {
  struct Sent {
    std::shared_ptr<WorkerConnection> connection;
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

ReplicaSet::ReplicaSet(int64_t num_experts, Group group, RouterMetrics metrics)
    : num_experts_(num_experts),
      metrics_(std::move(metrics)),
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
  std::vector<bool> live(num_experts_, false);
  for (const ReplicaHolding& holding : group->holdings) {
    if (holding.connection->state().health() == WorkerHealth::State::kFailed) {
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

bool ReplicaSet::TakeHedge() {
  std::lock_guard<std::mutex> lock(mutex_);
  return budget_.Take();
}

void ReplicaSet::WakePings() { pings_->Wake(); }

void ReplicaSet::Ping(const std::shared_ptr<Pings>& pings,
                      const ReplicaHolding& holding) {
  auto answered = std::make_shared<std::atomic<bool>>(false);
  holding.connection->state().Health(
      [](WorkerHealth& health) { health.OnProbeSent(); });
  const uint64_t call_id = holding.connection->Ping(
      holding.session,
      [pings, answered,
       // Not the connection, which the callback would keep alive.
       state = holding.connection->shared_state()](const auto& reply) {
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
  pings->sent.push_back({.connection = holding.connection,
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
      sent.connection->Cancel(sent.call_id);
      if (sent.answered->exchange(true)) continue;
      sent.connection->state().Health([&](WorkerHealth& health) {
        // A set that goes knows nothing of the worker.
        health.OnProbeReply(now, /*ok=*/stopping);
      });
    }
    late.clear();  // connections end without the lock
    if (stopping) return;
    const Group group = this->group();
    for (const ReplicaHolding& holding : group->holdings) {
      const Clock::time_point due = holding.connection->state().Health(
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
    ids.push_back(group.holdings[i].connection->Ping(
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
  std::vector<bool> placed(num_experts_, false), live(num_experts_, false);
  absl::Status error;
  for (size_t i = 0; i < count; ++i) {
    const ReplicaHolding& holding = group.holdings[i];
    holding.connection->Cancel(ids[i]);
    for (const int32_t expert : holding.experts) {
      placed[expert] = true;
      live[expert] = live[expert] || status[i].ok();
    }
    if (status[i].ok()) continue;
    // One that lacks the session is there, also for other models.
    if (!absl::IsNotFound(status[i])) {
      holding.connection->state().Health(
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
