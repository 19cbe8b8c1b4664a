// ServiceTimes: the recently measured duration of batches, and estimates for
// queued sentences. Pure: times are passed in.
//
// The seconds of a round (joining sentences are encoded, all are decoded by a
// token) are modelled as a + b rows, fitted to about the last hundred rounds.
// Work is in rounds of a row (SentenceCost::work).

#ifndef ROUTER_ADMISSION_SERVICE_TIMES_H_
#define ROUTER_ADMISSION_SERVICE_TIMES_H_

#include <cstdint>

namespace gshard {

// The rate of work: a sentence is translated after (the work before it and its
// own) * `work_seconds` + its rounds * `round_seconds`.
struct Pace {
  double work_seconds = 0;  // 0: all present work runs at once
  double round_seconds = 0;

  double Seconds(double work, double rounds) const {
    return work * work_seconds + rounds * round_seconds;
  }
  // The pace slowed down by `factor`.
  Pace Times(double factor) const {
    return {factor * work_seconds, factor * round_seconds};
  }
};

class ServiceTimes {
 public:
  // A round of a batch with `rows` hypotheses. REQUIRES: rows > 0.
  void ObserveRound(int64_t rows, double seconds);

  // 0 before the first measurement: no one is refused on unknown times.
  double RoundSeconds(double rows) const;

  // The pace of `batches` batches of at most `max_rows` rows each if there are
  // `rows` in total, including queued ones. A queued sentence waits at most
  // until the work before it has filled all rows, and then takes its own time.
  // If there are more `lanes`, each with its own rows, they take turns at being
  // batches, and a sentence advances by a round in each of its turns.
  Pace PaceOf(double rows, double max_rows, double batches, double lanes) const;

  // Seconds until `work` is done, if `rows` share it; otherwise as PaceOf().
  double Seconds(double work, double rows, double max_rows, double batches,
                 double lanes) const;

 private:
  // Sums over rounds, older ones weighing less: weight, rows, seconds, rows^2,
  // rows * seconds.
  double w_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;
};

}  // namespace gshard

#endif  // ROUTER_ADMISSION_SERVICE_TIMES_H_
