#include "router/admission/service_times.h"

#include <algorithm>

namespace gshard {
namespace {

constexpr double kForget = 0.99;  // decay of a round's weight per round

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

double ServiceTimes::RoundSeconds(double rows) const {
  if (w_ == 0) return 0;
  const double mean_x = x_ / w_, mean_y = y_ / w_;
  // Rounds of a single size say nothing about others, which then count the
  // same.
  const double variance = xx_ / w_ - mean_x * mean_x;
  double slope = 0;
  if (variance > 1e-3 * mean_x * mean_x) {
    slope = std::max(0.0, (xy_ / w_ - mean_x * mean_y) / variance);
    slope = std::min(slope, mean_y / mean_x);  // keeps a >= 0
  }
  return std::max(0.0, mean_y + slope * (rows - mean_x));
}

Pace ServiceTimes::PaceOf(double rows, double max_rows, double batches,
                          double lanes) const {
  lanes = std::max(lanes, batches);
  const double turns = lanes / batches;
  if (rows <= max_rows * lanes) {
    return {.work_seconds = 0,
            .round_seconds = turns * RoundSeconds(std::max(1.0, rows / lanes))};
  }
  const double round = RoundSeconds(max_rows);
  const double work = round / (max_rows * batches);
  return {.work_seconds = work, .round_seconds = turns * round - work};
}

double ServiceTimes::Seconds(double work, double rows, double max_rows,
                             double batches, double lanes) const {
  const double shared =
      std::clamp(rows / std::max(lanes, batches), 1.0, max_rows);
  return work / (shared * batches) * RoundSeconds(shared);
}

}  // namespace gshard
