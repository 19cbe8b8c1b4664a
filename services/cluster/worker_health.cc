#include "services/cluster/worker_health.h"

#include <algorithm>

namespace gshard {

size_t WorkerHealth::SizeClass(int64_t rows) {
  if (rows <= 32) return 0;
  if (rows <= 256) return 1;
  return rows <= 2048 ? 2 : 3;
}

void WorkerHealth::OnReply(int64_t rows, Duration latency) {
  Latencies& latencies = latencies_[SizeClass(rows)];
  if (latencies.recent.size() < kKept) {
    latencies.recent.push_back(latency);
    return;
  }
  latencies.recent[latencies.next] = latency;
  latencies.next = (latencies.next + 1) % kKept;
}

WorkerHealth::Duration WorkerHealth::HedgeDelay(int64_t rows) const {
  std::vector<Duration> recent = latencies_[SizeClass(rows)].recent;
  if (recent.size() < kEnough) return options_.first_hedge_delay;
  const auto rank =
      std::min(recent.size() - 1,
               static_cast<size_t>(options_.hedge_quantile *
                                   static_cast<double>(recent.size())));
  std::nth_element(recent.begin(), recent.begin() + rank, recent.end());
  const Duration delay(static_cast<int64_t>(
      static_cast<double>(recent[rank].count()) * options_.hedge_factor));
  return std::clamp(delay, options_.min_hedge_delay, options_.max_hedge_delay);
}

bool WorkerHealth::OnFailure(Time now) {
  if (state_ == State::kFailed) return false;
  Worsen(State::kFailed, now);
  return true;
}

bool WorkerHealth::OnSilence(Time now) {
  if (state_ != State::kGood) return false;
  Worsen(State::kSlow, now);
  return true;
}

void WorkerHealth::Worsen(State state, Time now) {
  // The probing of a slow worker continues.
  if (state_ == State::kGood) {
    probe_interval_ = options_.min_probe_interval;
    next_probe_ = now;
  }
  state_ = state;
}

WorkerHealth::Time WorkerHealth::next_probe() const {
  return state_ == State::kGood || probing_ ? Time::max() : next_probe_;
}

void WorkerHealth::OnProbeSent() { probing_ = true; }

void WorkerHealth::OnProbeReply(Time now, bool ok) {
  probing_ = false;
  if (ok) {
    state_ = State::kGood;
    return;
  }
  state_ = State::kFailed;
  next_probe_ = now + probe_interval_;
  probe_interval_ = std::min(2 * probe_interval_, options_.max_probe_interval);
}

void HedgeBudget::OnCall() { left_ = std::min(left_ + share_, burst_); }

void HedgeBudget::Take() { left_ -= 1.0; }

}  // namespace gshard
