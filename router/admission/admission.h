// Admission: whether a request is taken, decided when it comes. One that the
// queue has no room for, that would take a caller above its share, that cannot
// be answered in time, or by which another could not that was taken before, is
// refused at once, with a delay after which it may be tried again. So who is
// taken is answered in time, as far as estimates hold; if they do not, they are
// corrected by how many were late. Not thread-safe; no clock.
//
// Shares are fair at this place. Of the work that can be done until a request's
// deadline, what is not taken yet is free. A caller that has something waiting
// may have twice as much as it leaves free if no other one was ever seen, and a
// quarter otherwise: two callers get a sixth each, and there is always room for
// another one. That is a limit of what waits, not of what is done: who comes
// again as its sentences end keeps the batch full. It is low so that turns can
// be fair: if more was promised, what is due soon would have to go before the
// turns of others whenever it takes longer than was expected. A flow may have
// twice as much as it leaves of what its caller may have.
//
// Who has nothing waiting may ask for more than its share, as long as it can be
// done in time. It is not promised that: it waits for its turns, and others
// wait for nothing of it but what runs.

#ifndef ROUTER_ADMISSION_ADMISSION_H_
#define ROUTER_ADMISSION_ADMISSION_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "router/admission/caller_costs.h"
#include "router/admission/join_rule.h"
#include "router/admission/outstanding_work.h"
#include "router/admission/service_times.h"

namespace gshard {

// Tokens are those of the sources, once for each hypothesis of the beam.
struct AdmissionLimits {
  // What may wait, and so what one request may have.
  int64_t max_queued_tokens = int64_t{1} << 18;
  int64_t max_queued_sentences = 4096;

  // What one caller may have waiting and running. One request may always have
  // what it may have at all.
  int64_t max_caller_tokens = int64_t{1} << 17;

  // Requests that would be answered later than this are refused, whatever their
  // deadline; but one that finds no other work is taken.
  std::chrono::milliseconds max_wait{30'000};
};

struct AdmissionRequest {
  std::string caller;
  uint64_t flow = 0;
  std::vector<SentenceCost> costs;  // not empty, estimated by CallerCosts
  SteadyTime now;
  SteadyTime deadline;

  int64_t tokens() const;
  double work() const;
  double longest() const;  // rounds of a sentence
  int64_t rows() const;
};

// What became of a request; also names of a metric's label.
enum class Verdict {
  kAdmitted,
  kTooLarge,         // never to be taken
  kQueueFull,        // tokens or sentences
  kCallerLimit,      // of tokens
  kOverShare,        // of what can be done in time
  kTooLate,          // by the estimate
  kWouldViolateSlo,  // of those that were taken before
};
inline constexpr Verdict kVerdicts[] = {
    Verdict::kAdmitted,       Verdict::kTooLarge,  Verdict::kQueueFull,
    Verdict::kCallerLimit,    Verdict::kOverShare, Verdict::kTooLate,
    Verdict::kWouldViolateSlo};
const char* VerdictName(Verdict verdict);

class Admission {
 public:
  // `batches` is the number of batches that run at the same time.
  Admission(const AdmissionLimits& limits, const BatchLimits& batch,
            int batches);

  // The error's code is ResourceExhausted; it has a RetryDelay unless the
  // request is too large.
  struct Decision {
    Verdict verdict = Verdict::kAdmitted;
    absl::Status status;
    bool promised = false;  // an answer in time
  };
  Decision Decide(const AdmissionRequest& request) const;

  // What happened to a sentence: it was queued; joined a batch; left that,
  // translated or not; left the queue.
  void Queued(const WaitingSentence& sentence);
  void Joined(const WaitingSentence& sentence);
  void Left(const WaitingSentence& sentence);
  void Dropped(const WaitingSentence& sentence);

  // What is left to do of the sentences in a batch, as
  // SentenceCost::WorkLeft() has it, and when the last of them is given up.
  void Progress(const void* batch, double work_left, SteadyTime end);

  // A sentence that left a batch was not done in the rounds that it had: if
  // those were more than expected, its caller's are longer than was thought.
  void GivenUp(const WaitingSentence& sentence);

  // What became of a promise: the answer was there in time, or was not.
  void Kept();
  void Broken();

  // Of those that wait, who may go before others that are due earlier.
  Slack SlackAt(SteadyTime now) const;

  // Whether a sentence that would join now cannot be done in time, even if it
  // takes half as long as it should.
  bool MissesDeadline(const WaitingSentence& sentence, SteadyTime now) const;

  ServiceTimes& times() { return times_; }
  CallerCosts& callers() { return callers_; }
  const OutstandingWork& work() const { return work_; }
  int64_t queued_tokens() const { return queued_tokens_; }
  int64_t queued_sentences() const { return queued_sentences_; }
  int64_t running_sentences() const { return running_sentences_; }
  int64_t running_positions() const { return running_positions_; }

  // Until all that was taken is done.
  double EstimatedSeconds() const;

 private:
  // By what it finds.
  Decision DecideInTime(const AdmissionRequest& request) const;
  // Rows of a full batch, as far as its cache has room for them.
  double BatchRows() const;
  // An error with the time that so much work takes.
  Decision Refuse(Verdict verdict, std::string why, double work) const;
  // That of so many tokens of a usual caller.
  double UsualWork(int64_t tokens) const {
    return callers_.UsualRounds() * static_cast<double>(tokens);
  }

  const AdmissionLimits limits_;
  const BatchLimits batch_;
  const double batches_;
  ServiceTimes times_;
  CallerCosts callers_;
  OutstandingWork work_;
  int64_t queued_tokens_ = 0;
  int64_t queued_sentences_ = 0;
  int64_t running_sentences_ = 0;
  int64_t running_positions_ = 0;
  int64_t rows_ = 0;       // of all that wait or run
  int64_t positions_ = 0;  // of these
  double correction_ = 1;  // of estimates
};

}  // namespace gshard

#endif  // ROUTER_ADMISSION_ADMISSION_H_
