// ServiceTimes: how long a batch takes, as it was measured lately, and what
// follows for sentences that wait. Pure: whoever has a clock tells it.
//
// The seconds of a round (who joins is encoded, all are decoded by a token) are
// taken as a + b rows, fitted to the last hundred rounds or so. Work is in
// rounds of a row (SentenceCost::work).

#ifndef ROUTER_ADMISSION_SERVICE_TIMES_H_
#define ROUTER_ADMISSION_SERVICE_TIMES_H_

#include <cstdint>

namespace gshard {

// How fast work is done: seconds until a sentence is translated are the work
// that goes before it, its own included, times `work_seconds`, and its rounds
// times `round_seconds`.
struct Pace {
  double work_seconds = 0;  // 0: all that is there runs at once
  double round_seconds = 0;

  double Seconds(double work, double rounds) const {
    return work * work_seconds + rounds * round_seconds;
  }
  // So many times as long.
  Pace Times(double factor) const {
    return {factor * work_seconds, factor * round_seconds};
  }
};

class ServiceTimes {
 public:
  // A round of a batch with so many hypotheses. REQUIRES: rows > 0.
  void ObserveRound(int64_t rows, double seconds);

  // 0 before a round was measured: nobody is refused for what is not known.
  double RoundSeconds(double rows) const;

  // Of so many batches, full with `max_rows` rows, when `rows` are there, those
  // that wait included. Who waits does so at most until the work before it has
  // filled all rows, and then takes its own time.
  Pace PaceOf(double rows, double max_rows, double batches) const;

  // Seconds until so much work is done, when `rows` share it.
  double Seconds(double work, double rows, double max_rows,
                 double batches) const;

 private:
  // Sums over rounds, older ones weighing less: weight, rows, seconds, rows^2,
  // rows * seconds.
  double w_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;
};

}  // namespace gshard

#endif  // ROUTER_ADMISSION_SERVICE_TIMES_H_
