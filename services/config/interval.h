// Interval: the range of a numeric configuration field.

#ifndef SERVICES_CONFIG_INTERVAL_H_
#define SERVICES_CONFIG_INTERVAL_H_

#include <string>

#include "absl/strings/str_cat.h"

namespace gshard {

struct Interval {
  // [low, high]
  static constexpr Interval Closed(double low, double high) {
    return {low, high, false, false};
  }
  // [0, 1) as a float, of rates and shares: from 1 - 2^-25 on, a double rounds
  // to 1.0f.
  static constexpr Interval Rate() { return {0.0, 1.0 - 0x1p-25, false, true}; }
  // (0, high]
  static constexpr Interval Positive(double high) {
    return {0.0, high, true, false};
  }

  // False for NaN.
  constexpr bool Contains(double value) const {
    return (low_open ? value > low : value >= low) &&
           (high_open ? value < high : value <= high);
  }

  // "0 to 100", "at least 0 and less than 1", "above 0 and at most 100".
  std::string ToString() const {
    if (!low_open && !high_open) return absl::StrCat(low, " to ", high);
    return absl::StrCat(low_open ? "above " : "at least ", low,
                        high_open ? " and less than " : " and at most ", high);
  }

  double low;
  double high;
  bool low_open;
  bool high_open;
};

}  // namespace gshard

#endif  // SERVICES_CONFIG_INTERVAL_H_
