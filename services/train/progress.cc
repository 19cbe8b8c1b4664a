#include "services/train/progress.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace gshard {

std::string FormatCount(double value) {
  if (!std::isfinite(value)) return absl::StrFormat("%g", value);
  const std::string digits = absl::StrFormat("%.0f", value);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    const size_t left = digits.size() - i;
    if (i > 0 && left % 3 == 0 && digits[i - 1] != '-') text.push_back(',');
    text.push_back(digits[i]);
  }
  return text;
}

std::string FormatProgress(const Progress& progress) {
  const std::string total = absl::StrCat(progress.total_steps);
  return absl::StrFormat(
      "step %*d/%s  loss %7.4f  balance %6.3f  overflow %5.1f%%  %9s tok/s  "
      "ETA %s",
      static_cast<int>(total.size()), progress.step, total, progress.loss,
      progress.balance_loss, 100.0 * progress.overflow_share,
      FormatCount(progress.tokens_per_second),
      progress.eta_seconds.has_value() ? FormatDuration(*progress.eta_seconds)
                                       : "--:--:--");
}

std::string FormatDuration(double seconds) {
  // Far beyond any job, and safe to convert to an integer.
  constexpr double kMaxSeconds = 86400.0 * 99999;
  if (!(seconds <= kMaxSeconds)) seconds = kMaxSeconds;
  const int64_t whole = static_cast<int64_t>(std::ceil(std::max(seconds, 0.0)));
  const int64_t days = whole / 86400;
  return absl::StrCat(days > 0 ? absl::StrCat(days, "d ") : "",
                      absl::StrFormat("%02d:%02d:%02d", whole / 3600 % 24,
                                      whole / 60 % 60, whole % 60));
}

void SmoothedRate::Observe(double amount, double seconds) {
  if (!(seconds > 0)) return;
  const double keep = std::exp2(-seconds / half_life_seconds_);
  amount_ = keep * amount_ + amount;
  seconds_ = keep * seconds_ + seconds;
}

std::optional<double> SmoothedRate::rate() const {
  if (seconds_ == 0) return std::nullopt;
  return amount_ / seconds_;
}

std::optional<double> SmoothedRate::TimeFor(double remaining) const {
  const std::optional<double> per_second = rate();
  if (!per_second.has_value() || *per_second <= 0) return std::nullopt;
  return remaining / *per_second;
}

}  // namespace gshard
