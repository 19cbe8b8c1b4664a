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

// How fast work is done: seconds until a sentence is translated are
// `tokens` of work that go before it, its own included, times `token_seconds`,
// and its source tokens times `step_seconds`.
struct Pace {
  double token_seconds = 0;  // 0: all that is there runs at once
  double step_seconds = 0;

  double Seconds(double tokens, double source_tokens) const {
    return tokens * token_seconds + source_tokens * step_seconds;
  }
};

class ServiceTimes {
 public:
  // A round of a batch with so many hypotheses. REQUIRES: rows > 0.
  void ObserveRound(int64_t rows, double seconds);
  // A sentence that was translated in so many rounds.
  // REQUIRES: source_tokens > 0.
  void ObserveSentence(int64_t source_tokens, int64_t rounds);

  // 0 before a round was measured: nobody is refused for what is not known.
  double RoundSeconds(double rows) const;
  double RoundsPerToken() const { return rounds_per_token_; }

  // What is left to do of a sentence that has had so many rounds.
  double TokensLeft(int64_t source_tokens, int64_t rows, int64_t rounds) const;

  // Of so many batches, full with `max_rows` rows, when `rows` are there, those
  // that wait included. Who waits does so at most until the work before it has
  // filled all rows, and then takes its own time.
  Pace PaceOf(double rows, double max_rows, double batches) const;

  // Seconds until `tokens` (of sources, once for each hypothesis) are
  // translated, when `rows` share them.
  double Seconds(double tokens, double rows, double max_rows,
                 double batches) const;

 private:
  // Sums over rounds, older ones weighing less: weight, rows, seconds, rows^2,
  // rows * seconds.
  double w_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;
  // A moving average; until a sentence is done, a guess, for many may come
  // before that.
  double rounds_per_token_ = 1;
  bool guessed_ = true;
};

}  // namespace gshard

#endif  // ROUTER_SERVICE_TIMES_H_
