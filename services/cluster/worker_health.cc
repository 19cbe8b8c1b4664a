#include "services/cluster/worker_health.h"

#include <algorithm>
#include <utility>

namespace gshard {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A call is hedged after kHedgeFactor times this quantile of the latencies.
constexpr double kHedgeQuantile = 0.99;
constexpr double kHedgeFactor = 2.0;
constexpr WorkerHealth::Duration kMinHedgeDelay = milliseconds(10);
constexpr WorkerHealth::Duration kMaxHedgeDelay = milliseconds(500);

// Interval between probes of an avoided worker; doubles with every failed
// probe.
constexpr WorkerHealth::Duration kMinProbeInterval = milliseconds(20);
constexpr WorkerHealth::Duration kMaxProbeInterval = seconds(1);

// A worker that has left this many calls in a row unanswered is not trusted
// for what it answers to probes: it stays slow for a time that doubles with
// each further call.
constexpr int kMaxUnanswered = 3;
constexpr WorkerHealth::Duration kMinDistrust = seconds(1);
constexpr WorkerHealth::Duration kMaxDistrust = seconds(30);

}  // namespace

size_t WorkerHealth::SizeClass(int64_t rows) {
  if (rows <= 32) return 0;
  if (rows <= 256) return 1;
  return rows <= 2048 ? 2 : 3;
}

void WorkerHealth::OnReply(int64_t rows, Duration latency) {
  if (unanswered_ >= kMaxUnanswered && state_ == State::kSlow) {
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
  if (recent.size() < kEnough) return first_hedge_delay_;
  const auto rank = std::min(
      recent.size() - 1,
      static_cast<size_t>(kHedgeQuantile * static_cast<double>(recent.size())));
  std::nth_element(recent.begin(), recent.begin() + rank, recent.end());
  const Duration delay(static_cast<int64_t>(
      static_cast<double>(recent[rank].count()) * kHedgeFactor));
  return std::clamp(delay, kMinHedgeDelay, kMaxHedgeDelay);
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

bool WorkerHealth::OnLongSilence(Time now) {
  return now - last_reply_ >= kMaxProbeInterval && OnSilence(now);
}

bool WorkerHealth::OnUnanswered(Time now) {
  // Calls that were under way when it lost the trust do not lose it again.
  if (++unanswered_ < kMaxUnanswered || now < trusted_at_) {
    return false;
  }
  distrust_ = std::clamp(2 * distrust_, kMinDistrust, kMaxDistrust);
  trusted_at_ = now + distrust_;
  return OnSilence(now);
}

void WorkerHealth::Worsen(State state, Time now) {
  // The probing of a slow worker continues.
  if (state_ == State::kGood) {
    probe_interval_ = kMinProbeInterval;
    next_probe_ = now;
  }
  state_ = state;
}

WorkerHealth::Time WorkerHealth::next_probe() const {
  return state_ == State::kGood || probing_ ? Time::max() : next_probe_;
}

void WorkerHealth::OnProbeSent() { probing_ = true; }

bool WorkerHealth::OnProbeReply(Time now, bool ok) {
  probing_ = false;
  last_reply_ = now;
  if (ok && now >= trusted_at_) {
    state_ = State::kGood;
    return false;
  }
  if (ok) {
    // It goes on being probed, as it may yet be lost.
    state_ = State::kSlow;
    next_probe_ = std::min(trusted_at_, now + kMaxProbeInterval);
    return false;
  }
  next_probe_ = now + probe_interval_;
  probe_interval_ = std::min(2 * probe_interval_, kMaxProbeInterval);
  return std::exchange(state_, State::kFailed) != State::kFailed;
}

void HedgeBudget::OnCall() { left_ = std::min(left_ + share_, burst_); }

void HedgeBudget::Take() { left_ = std::max(left_ - 1.0, 0.0); }

}  // namespace gshard
