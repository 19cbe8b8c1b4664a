// Admission: decides on arrival whether a request is accepted. A request is
// refused at once, with a retry delay, if the queue is full, if its caller
// would exceed its share, if it cannot be answered in time, or if it would make
// an accepted one late. So accepted requests are answered in time as far as the
// estimates hold; the estimates are corrected by the share of late answers. Not
// thread-safe; no clock.
//
// Fair shares are enforced here. Free work is what can be done until a
// request's deadline and is not yet promised. A caller with queued work may
// have twice what it leaves free if no other caller was ever seen, and a
// quarter of it otherwise: two callers get a sixth each, and there is always
// room for another one. This limits queued work, not throughput: a caller that
// sends new sentences as its old ones end keeps the batch full. The limit is
// low so that turns can be fair: if more were promised, urgent work would have
// to overtake the turns of others whenever it takes longer than expected. A
// flow may have twice what it leaves of its caller's share.
//
// A caller without queued work may exceed its share as long as the request can
// be done in time. Such a request has no promise: it takes its turns, and
// others wait only for the part of it that is running.

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

// Tokens are source tokens times hypotheses of the beam.
struct AdmissionLimits {
  // Limits of the queue, and so of one request.
  int64_t max_queued_tokens = int64_t{1} << 18;
  int64_t max_queued_sentences = 4096;

  // Limit of one caller's queued and running work. A caller's only request may
  // always use all of it.
  int64_t max_caller_tokens = int64_t{1} << 17;

  // Requests that would be answered later than this are refused, whatever their
  // deadline; but an idle router accepts any request.
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

// The outcome of admission; names are also values of a metric's label.
enum class Verdict {
  kAdmitted,
  kTooLarge,         // can never be accepted
  kQueueFull,        // tokens or sentences
  kCallerLimit,      // caller's tokens
  kOverShare,        // share of the work that can be done in time
  kTooLate,          // according to the estimate
  kWouldViolateSlo,  // an accepted request would miss its deadline
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
    bool promised = false;  // an answer in time is promised
  };
  Decision Decide(const AdmissionRequest& request) const;

  // The life cycle of a sentence: it was queued; joined a batch; left the
  // batch, translated or not; left the queue.
  void Queued(const WaitingSentence& sentence);
  void Joined(const WaitingSentence& sentence);
  void Left(const WaitingSentence& sentence);
  void Dropped(const WaitingSentence& sentence);

  // The remaining work of the sentences in a batch (SentenceCost::WorkLeft()),
  // and when the last of them is given up.
  void Progress(const void* batch, double work_left, SteadyTime end);

  // The number of lanes with sentences, a request's own included: each model
  // has one on each thread, and those of a thread take turns, a round each. At
  // first no more than there are batches.
  void SetLanes(int64_t lanes) { lanes_ = static_cast<double>(lanes); }

  // A sentence left a batch unfinished: if it had more rounds than expected,
  // the estimate for its caller rises.
  void GivenUp(const WaitingSentence& sentence);

  // A promised answer was in time, or late.
  void Kept();
  void Broken();

  // Which queued sentences may overtake others with earlier deadlines.
  Slack SlackAt(SteadyTime now) const;

  // Whether a sentence that joins now will miss its deadline even if it takes
  // half the expected time. If there is no other request, let it join all the
  // same, so that estimates that are too high are corrected.
  bool MissesDeadline(const WaitingSentence& sentence, SteadyTime now) const;

  ServiceTimes& times() { return times_; }
  CallerCosts& callers() { return callers_; }
  const OutstandingWork& work() const { return work_; }
  int64_t queued_tokens() const { return queued_tokens_; }
  int64_t queued_sentences() const { return queued_sentences_; }
  int64_t running_sentences() const { return running_sentences_; }
  int64_t running_positions() const { return running_positions_; }

  // Seconds until all accepted work is done.
  double EstimatedSeconds() const { return Seconds(work_.work()); }

 private:
  // Decides by the schedulability estimate.
  Decision DecideInTime(const AdmissionRequest& request) const;
  // Rows of a batch that one caller has filled, limited by its cache.
  double BatchRows() const;
  // The pace if there are `rows` in total.
  Pace PaceOf(double rows) const {
    return times_.PaceOf(rows, BatchRows(), batches_, lanes_);
  }
  // An error with the time for this work as the retry delay.
  Decision Refuse(Verdict verdict, std::string why, double work) const;
  // Seconds until `work` is done, shared by all present rows.
  double Seconds(double work) const {
    return times_.Seconds(work, static_cast<double>(rows_), BatchRows(),
                          batches_, lanes_);
  }
  // The work of this many tokens of a typical caller.
  double UsualWork(int64_t tokens) const {
    return callers_.UsualRounds() * static_cast<double>(tokens);
  }

  const AdmissionLimits limits_;
  const BatchLimits batch_;
  const double batches_;
  double lanes_ = 1;
  ServiceTimes times_;
  CallerCosts callers_;
  OutstandingWork work_;
  int64_t queued_tokens_ = 0;
  int64_t queued_sentences_ = 0;
  int64_t running_sentences_ = 0;
  int64_t running_positions_ = 0;
  int64_t rows_ = 0;       // waiting and running
  int64_t positions_ = 0;  // of these
  double correction_ = 1;  // factor on estimates
};

}  // namespace gshard

#endif  // ROUTER_ADMISSION_ADMISSION_H_
