// A router's view of one expert worker: whether to send it rows, and how long
// to wait for its answer before hedging to another replica.
//
// Decisions only: time is passed in, and the caller serializes the calls.

#ifndef SERVICES_CLUSTER_WORKER_HEALTH_H_
#define SERVICES_CLUSTER_WORKER_HEALTH_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace gshard {

class WorkerHealth {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::microseconds;

  enum class State {
    kGood,
    kSlow,    // responds slowly: others are preferred
    kFailed,  // gets no calls
  };

  // A call is hedged after `first_hedge_delay` while too few latencies are
  // known, later by the worker's latencies for calls of a similar number of
  // rows.
  explicit WorkerHealth(
      Duration first_hedge_delay = std::chrono::milliseconds(100))
      : first_hedge_delay_(first_hedge_delay) {}

  // The worker answered a call, and is trusted again.
  void OnReply(int64_t rows, Duration latency);
  // It had a call for longer than HedgeDelay(), and nobody waits for its answer
  // any more: another worker was faster, or it was given up. Returns true if
  // that changes its state. A worker may do so forever and yet answer probes:
  // whatever computes hangs.
  bool OnUnanswered(Time now);
  // The worker returned an error, or its stream broke. Returns true if that
  // changes its state.
  bool OnFailure(Time now);
  // It has not answered a call within HedgeDelay(), or its stream was lost,
  // perhaps while nobody called it: others are preferred, and it is probed.
  // Returns true if that changes its state.
  bool OnSilence(Time now);
  // It has still not answered that call: it is probed again, at most once a
  // second. Its answer may be another by now. Returns true if a probe is due.
  bool OnLongSilence(Time now);

  State state() const { return state_; }

  Duration HedgeDelay(int64_t rows) const;

  // Workers that are not good are probed: with calls without rows, one at a
  // time. An answered probe makes the worker good, or slow while it is not
  // trusted.
  Time next_probe() const;  // max() if none is to be sent
  void OnProbeSent();
  // Returns true if the worker has failed now, and had not before.
  bool OnProbeReply(Time now, bool ok);
  // Nobody waits for its answer any more: another probe is due.
  void OnProbeDropped() { probing_ = false; }

 private:
  static constexpr size_t kKept = 64;    // latencies per size class
  static constexpr size_t kEnough = 16;  // minimum for a quantile

  struct Latencies {
    std::vector<Duration> recent;  // a ring
    size_t next = 0;
  };

  // Size classes: up to 32, 256, 2048 and more rows.
  static size_t SizeClass(int64_t rows);
  void Worsen(State state, Time now);

  Duration first_hedge_delay_;
  State state_ = State::kGood;
  std::array<Latencies, 4> latencies_;
  bool probing_ = false;
  Duration probe_interval_{0};
  Time next_probe_;
  Time last_reply_;                // to a probe
  int unanswered_ = 0;             // calls in a row
  Duration distrust_{0};           // the last one's time
  Time trusted_at_ = Time::min();  // again
};

// Limits hedged calls: a share of all calls, plus a burst.
class HedgeBudget {
 public:
  // `share` of calls, 0 to 1; `burst` at least 1.
  explicit HedgeBudget(double share = 0.05, double burst = 16.0)
      : share_(share), burst_(burst), left_(burst) {}

  void OnCall();
  // Whether a call may be hedged now.
  bool Allows() const { return left_ >= 1.0; }
  // A call was hedged, perhaps one that was not allowed to be. Of several at
  // once, all may have been allowed by the last one left.
  void Take();

 private:
  const double share_;
  const double burst_;
  double left_;
};

}  // namespace gshard

#endif  // SERVICES_CLUSTER_WORKER_HEALTH_H_
