#include "services/cluster/worker_health.h"

#include <algorithm>

namespace gshard {

size_t WorkerHealth::SizeClass(int64_t rows) {
  if (rows <= 32) return 0;
  if (rows <= 256) return 1;
  return rows <= 2048 ? 2 : 3;
}

void WorkerHealth::OnReply(int64_t rows, Duration latency) {
  if (unanswered_ >= options_.max_unanswered && state_ == State::kSlow) {
    state_ = State::kGood;
  }
  unanswered_ = 0;
  distrust_ = Duration(0);
  trusted_at_ = Time::min();
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

bool WorkerHealth::OnUnanswered(Time now) {
  // Calls that were under way when it lost the trust do not lose it again.
  if (++unanswered_ < options_.max_unanswered || now < trusted_at_) {
    return false;
  }
  distrust_ =
      std::clamp(2 * distrust_, options_.min_distrust, options_.max_distrust);
  trusted_at_ = now + distrust_;
  return OnSilence(now);
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
  if (ok && now >= trusted_at_) {
    state_ = State::kGood;
    return;
  }
  if (ok) {
    // It goes on being probed, as it may yet be lost.
    state_ = State::kSlow;
    next_probe_ = std::min(trusted_at_, now + options_.max_probe_interval);
    return;
  }
  state_ = State::kFailed;
  next_probe_ = now + probe_interval_;
  probe_interval_ = std::min(2 * probe_interval_, options_.max_probe_interval);
}

void HedgeBudget::OnCall() { left_ = std::min(left_ + share_, burst_); }

void HedgeBudget::Take() { left_ = std::max(left_ - 1.0, 0.0); }

}  // namespace gshard
