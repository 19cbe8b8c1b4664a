// The progress line that a person watching a training job reads.
//
//   step  120/2000  loss  4.8312  balance  1.084  overflow   2.1% ...
//   ...    12,345 tok/s  ETA 00:12:31

#ifndef SERVICES_TRAIN_PROGRESS_H_
#define SERVICES_TRAIN_PROGRESS_H_

#include <cstdint>
#include <optional>
#include <string>

namespace gshard {

struct Progress {
  int64_t step = 0;
  int64_t total_steps = 0;
  double loss = 0.0;                  // nats per target token
  double balance_loss = 0.0;          // mean over MoE layers; 1 is even load
  double overflow_share = 0.0;        // of choices that got no slot, [0, 1]
  double tokens_per_second = 0.0;     // target tokens
  std::optional<double> eta_seconds;  // absent while unknown
};

// Columns line up over the steps of a job. No newline at the end.
std::string FormatProgress(const Progress& progress);

// "12,345"; rounded to a whole number.
std::string FormatCount(double value);

// "00:12:31", "3d 04:05:06"; rounded up to whole seconds.
std::string FormatDuration(double seconds);

// A rate that follows changes but suppresses noise: amounts and seconds both
// decay with a half-life, so steps are weighted by their duration. Not
// thread-safe; the caller measures the time.
class SmoothedRate {
 public:
  // REQUIRES: half_life_seconds > 0.
  explicit SmoothedRate(double half_life_seconds = 60.0)
      : half_life_seconds_(half_life_seconds) {}

  // `amount` units were done in `seconds`; calls with seconds <= 0 are ignored.
  void Observe(double amount, double seconds);

  // Per second; absent before the first observation.
  std::optional<double> rate() const;

  // Seconds for `remaining` more units; absent while the rate is unknown or 0.
  std::optional<double> TimeFor(double remaining) const;

 private:
  const double half_life_seconds_;
  double amount_ = 0.0;
  double seconds_ = 0.0;
};

}  // namespace gshard

#endif  // SERVICES_TRAIN_PROGRESS_H_
