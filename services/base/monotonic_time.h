// MonotonicTime: a point in time on a clock that is never set: for leases,
// limits and durations within this process. Use absl::Time for times that
// people read, that outlive the process or that are compared with other
// machines.

#ifndef SERVICES_BASE_MONOTONIC_TIME_H_
#define SERVICES_BASE_MONOTONIC_TIME_H_

#include <chrono>
#include <compare>

#include "absl/time/time.h"

namespace gshard {

class MonotonicTime {
 public:
  // The clock's epoch, which is arbitrary.
  constexpr MonotonicTime() = default;

  static MonotonicTime Now() {
    return MonotonicTime() +
           absl::FromChrono(
               std::chrono::steady_clock::now().time_since_epoch());
  }
  static constexpr MonotonicTime InfiniteFuture() {
    return MonotonicTime(absl::InfiniteDuration());
  }
  static constexpr MonotonicTime InfinitePast() {
    return MonotonicTime(-absl::InfiniteDuration());
  }

  MonotonicTime& operator+=(absl::Duration duration) {
    since_beginning_ += duration;
    return *this;
  }
  friend MonotonicTime operator+(MonotonicTime time, absl::Duration duration) {
    return time += duration;
  }
  friend absl::Duration operator-(MonotonicTime a, MonotonicTime b) {
    return a.since_beginning_ - b.since_beginning_;
  }
  friend bool operator==(MonotonicTime, MonotonicTime) = default;
  friend std::strong_ordering operator<=>(MonotonicTime,
                                          MonotonicTime) = default;

 private:
  explicit constexpr MonotonicTime(absl::Duration since_beginning)
      : since_beginning_(since_beginning) {}

  absl::Duration since_beginning_;
};

// The seconds from `start` until now.
inline double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
      .count();
}

}  // namespace gshard

#endif  // SERVICES_BASE_MONOTONIC_TIME_H_
