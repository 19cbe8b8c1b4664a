#include "router/service_times.h"

#include <algorithm>

namespace gshard {
namespace {

constexpr double kForget = 0.99;          // of a round, with each that follows
constexpr double kSentenceWeight = 0.05;  // of the latest

}  // namespace

void ServiceTimes::ObserveRound(int64_t rows, double seconds) {
  const auto x = static_cast<double>(rows);
  for (double* const sum : {&w_, &x_, &y_, &xx_, &xy_}) *sum *= kForget;
  w_ += 1;
  x_ += x;
  y_ += seconds;
  xx_ += x * x;
  xy_ += x * seconds;
}

void ServiceTimes::ObserveSentence(int64_t source_tokens, int64_t rounds) {
  const double ratio = static_cast<double>(std::max<int64_t>(rounds, 1)) /
                       static_cast<double>(source_tokens);
  rounds_per_token_ +=
      (guessed_ ? 1 : kSentenceWeight) * (ratio - rounds_per_token_);
  guessed_ = false;
}

double ServiceTimes::RoundSeconds(double rows) const {
  if (w_ == 0) return 0;
  const double mean_x = x_ / w_, mean_y = y_ / w_;
  // Rounds of one size say nothing of others, which then count as alike.
  const double variance = xx_ / w_ - mean_x * mean_x;
  double slope = 0;
  if (variance > 1e-3 * mean_x * mean_x) {
    slope = std::max(0.0, (xy_ / w_ - mean_x * mean_y) / variance);
    slope = std::min(slope, mean_y / mean_x);  // a is not below 0
  }
  return std::max(0.0, mean_y + slope * (rows - mean_x));
}

double ServiceTimes::TokensLeft(int64_t source_tokens, int64_t rows,
                                int64_t rounds) const {
  const auto length = static_cast<double>(source_tokens);
  const double round = 1 / rounds_per_token_;  // in tokens
  return static_cast<double>(rows) *
         std::max(length - static_cast<double>(rounds) * round,
                  std::min(length, round));
}

Pace ServiceTimes::PaceOf(double rows, double max_rows, double batches) const {
  if (rows <= max_rows * batches) {
    return {.token_seconds = 0,
            .step_seconds = rounds_per_token_ *
                            RoundSeconds(std::max(1.0, rows / batches))};
  }
  const double step = rounds_per_token_ * RoundSeconds(max_rows);
  const double token = step / (max_rows * batches);
  return {.token_seconds = token, .step_seconds = step - token};
}

double ServiceTimes::Seconds(double tokens, double rows, double max_rows,
                             double batches) const {
  const double shared = std::clamp(rows / batches, 1.0, max_rows);
  return rounds_per_token_ * tokens / (shared * batches) * RoundSeconds(shared);
}

}  // namespace gshard
