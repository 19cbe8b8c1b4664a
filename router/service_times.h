// ServiceTimes: how long a batch takes, as it was measured lately, and what
// follows for sentences that wait. Pure: whoever has a clock tells it.
//
// The seconds of a round (who joins is encoded, all are decoded by a token) are
// taken as a + b rows, fitted to the last hundred rounds or so; how many rounds
// a sentence takes, as a multiple of its source tokens.

#ifndef ROUTER_SERVICE_TIMES_H_
#define ROUTER_SERVICE_TIMES_H_

#include <cstdint>

namespace gshard {

class ServiceTimes {
 public:
  // A round of a batch with so many hypotheses. REQUIRES: rows > 0.
  void ObserveRound(int64_t rows, double seconds);
  // A sentence that was translated in so many rounds.
  // REQUIRES: source_tokens > 0.
  void ObserveSentence(int64_t source_tokens, int64_t rounds);

  // 0 before anything was measured: nobody is refused for what is not known.
  double RoundSeconds(double rows) const;
  double RoundsPerToken() const { return rounds_per_token_; }

  // Seconds until `tokens` (of sources, once for each hypothesis) are
  // translated by so many batches, full with at most `max_rows` rows, when
  // `rows` are there to share; and no sooner than one of `longest` source
  // tokens can be.
  double Seconds(double tokens, double rows, double longest, double max_rows,
                 double batches) const;

 private:
  // Sums over rounds, older ones weighing less: weight, rows, seconds, rows^2,
  // rows * seconds.
  double w_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;
  double rounds_per_token_ = 0;  // a moving average
};

}  // namespace gshard

#endif  // ROUTER_SERVICE_TIMES_H_
