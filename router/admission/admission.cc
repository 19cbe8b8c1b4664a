#include "router/admission/admission.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "services/base/retry_delay.h"

namespace gshard {
namespace {

using std::chrono::milliseconds;

// Limits of retry delays.
constexpr double kShortestDelay = 0.01, kLongestDelay = 60.0;  // seconds

// What a caller may have waiting, and be promised, in multiples of what it
// leaves free: alone, and with other callers. The latter makes estimates that
// are several times too low harmless: promised work is done in time by fair
// turns.
constexpr double kShare = 2.0, kShareBesideOthers = 0.25;

// Safety margin of estimates for unknown effects.
constexpr double kMargin = 1.05;

// One in fifty promises may be late before estimates are raised.
constexpr double kBroken = 1.05, kKept = 0.999, kMostCorrection = 3.0;

milliseconds ToDelay(double seconds) {
  return milliseconds(static_cast<int64_t>(
      std::ceil(1000 * std::clamp(seconds, kShortestDelay, kLongestDelay))));
}

}  // namespace

int64_t AdmissionRequest::tokens() const {
  int64_t sum = 0;
  for (const SentenceCost& cost : costs) sum += cost.tokens();
  return sum;
}

double AdmissionRequest::work() const {
  double sum = 0;
  for (const SentenceCost& cost : costs) sum += cost.work();
  return sum;
}

double AdmissionRequest::longest() const {
  double longest = 0;
  for (const SentenceCost& cost : costs) {
    longest = std::max(longest, cost.rounds);
  }
  return longest;
}

int64_t AdmissionRequest::rows() const {
  int64_t sum = 0;
  for (const SentenceCost& cost : costs) sum += cost.rows;
  return sum;
}

const char* VerdictName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kAdmitted:
      return "admitted";
    case Verdict::kTooLarge:
      return "too_large";
    case Verdict::kQueueFull:
      return "queue_full";
    case Verdict::kCallerLimit:
      return "caller_limit";
    case Verdict::kOverShare:
      return "over_share";
    case Verdict::kTooLate:
      return "too_late";
    case Verdict::kWouldViolateSlo:
      return "in_the_way";
  }
  return "unknown";
}

Admission::Admission(const AdmissionLimits& limits, const BatchLimits& batch,
                     int batches)
    : limits_(limits), batch_(batch), batches_(batches) {}

Admission::Decision Admission::Refuse(Verdict verdict, std::string why,
                                      double work) const {
  return {verdict, WithRetryDelay(absl::ResourceExhaustedError(why),
                                  ToDelay(Seconds(work)))};
}

Admission::Decision Admission::Decide(const AdmissionRequest& request) const {
  const int64_t tokens = request.tokens();
  const auto count = static_cast<int64_t>(request.costs.size());
  const auto too_large = [](std::string why) {
    return Decision{Verdict::kTooLarge, absl::ResourceExhaustedError(why)};
  };
  if (tokens > limits_.max_queued_tokens ||
      count > limits_.max_queued_sentences) {
    return too_large(
        absl::StrCat("the call has ", count, " sentences and ", tokens,
                     " tokens, one for each hypothesis of the beam; at most ",
                     limits_.max_queued_sentences, " and ",
                     limits_.max_queued_tokens, " are accepted: split it"));
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t positions = request.costs[i].positions;
    if (positions <= batch_.max_positions) continue;
    return too_large(absl::StrCat(
        "sentences[", i, "]: the source and the beam at its longest have ",
        positions, " positions, at most ", batch_.max_positions,
        " are accepted: lower beam_size or max_length"));
  }
  if (queued_sentences_ + count > limits_.max_queued_sentences ||
      queued_tokens_ + tokens > limits_.max_queued_tokens) {
    const int64_t excess = std::max<int64_t>(
        queued_tokens_ + tokens - limits_.max_queued_tokens, tokens);
    return Refuse(
        Verdict::kQueueFull,
        absl::StrCat("the queue is full: ", queued_sentences_,
                     " sentences and ", queued_tokens_,
                     " tokens wait, at most ", limits_.max_queued_sentences,
                     " and ", limits_.max_queued_tokens, " may"),
        UsualWork(excess));
  }
  const int64_t its = work_.TokensOf(request.caller);
  if (its > 0 && its + tokens > limits_.max_caller_tokens) {
    return Refuse(
        Verdict::kCallerLimit,
        absl::StrCat("the caller has ", its,
                     " tokens waiting or running, and asks for ", tokens,
                     " more; at most ", limits_.max_caller_tokens, " may be"),
        UsualWork(std::min(its, its + tokens - limits_.max_caller_tokens)));
  }
  return DecideInTime(request);
}

Admission::Decision Admission::DecideInTime(
    const AdmissionRequest& request) const {
  const SteadyTime latest =
      std::min(request.deadline, request.now + limits_.max_wait);
  const double left =
      std::chrono::duration<double>(latest - request.now).count();
  const double margin = kMargin * correction_;
  const Pace pace = PaceOf(static_cast<double>(rows_ + request.rows()));
  const double work = request.work();
  const double share =
      callers_.KnowsOthers(request.caller) ? kShareBesideOthers : kShare;
  Demand demand{.caller = request.caller,
                .flow = request.flow,
                .deadline = request.deadline,
                .work = work,
                .longest = request.longest()};
  const Waits waits = work_.WaitsOf(demand);
  const double its = waits.caller + work;
  // Refuse what would exceed a share even if nobody else had requested
  // anything.
  const Pace full = PaceOf(std::numeric_limits<double>::infinity());
  demand.promised =
      its * margin * full.work_seconds <= share / (1 + share) * left;
  const SchedulabilityEstimate estimate =
      work_.Estimate(demand, request.now, pace, margin);
  if (estimate.seconds > left) {
    // An idle router accepts any request: otherwise nothing new would be
    // measured.
    if (work_.empty()) return Decision();
    Decision late{
        Verdict::kTooLate,
        absl::ResourceExhaustedError(absl::StrCat(
            "an answer would take about ",
            static_cast<int64_t>(1000 * estimate.seconds), " ms, there are ",
            static_cast<int64_t>(1000 * left), " ms"))};
    late.status = WithRetryDelay(late.status, ToDelay(estimate.seconds - left));
    return late;
  }
  if (pace.work_seconds > 0 && waits.caller > 0) {
    const double free =
        (left - estimate.seconds) / (margin * pace.work_seconds);
    const double part = waits.flow + work;
    const double excess =
        std::max(its - share * free,
                 waits.flow == 0 ? 0.0 : part - kShare * (share * free - its));
    if (excess > 0) {
      const auto ms = [&](double of) {
        return static_cast<int64_t>(1000 * of * pace.work_seconds);
      };
      return Refuse(Verdict::kOverShare,
                    absl::StrCat("the caller has ", ms(waits.caller),
                                 " ms of work waiting, and asks for ", ms(work),
                                 " ms more: the rest is for others"),
                    excess);
    }
  }
  if (estimate.breaks_promises) {
    return Refuse(Verdict::kWouldViolateSlo,
                  "others that were accepted before would be answered late",
                  work);
  }
  Decision taken;
  taken.promised = demand.promised && times_.RoundSeconds(1) > 0;
  return taken;
}

double Admission::BatchRows() const {
  const auto rows = static_cast<double>(RowsOfOneCaller(batch_));
  if (positions_ == 0) return rows;
  return std::clamp(static_cast<double>(PositionsOfOneCaller(batch_)) *
                        static_cast<double>(rows_) /
                        static_cast<double>(positions_),
                    1.0, rows);
}

void Admission::Progress(const void* batch, double work_left, SteadyTime end) {
  work_.Progress(batch, work_left, end);
}

void Admission::GivenUp(const WaitingSentence& sentence) {
  const SentenceCost& cost = sentence.cost;
  if (static_cast<double>(sentence.rounds) <= cost.rounds) return;
  callers_.Observe(sentence.caller, cost.source_tokens, sentence.rounds,
                   cost.row_cost);
}

Slack Admission::SlackAt(SteadyTime now) const {
  return work_.SlackAt(now, PaceOf(static_cast<double>(rows_)),
                       kMargin * correction_);
}

bool Admission::MissesDeadline(const WaitingSentence& sentence,
                               SteadyTime now) const {
  const double turns = std::max(1.0, lanes_ / batches_);
  const double seconds = sentence.cost.rounds * turns * times_.RoundSeconds(1);
  return std::chrono::duration<double>(sentence.deadline - now).count() <
         0.5 * seconds;
}

void Admission::Kept() { correction_ = std::max(1.0, correction_ * kKept); }
void Admission::Broken() {
  correction_ = std::min(kMostCorrection, correction_ * kBroken);
}

void Admission::Queued(const WaitingSentence& sentence) {
  work_.Take(sentence);
  queued_tokens_ += sentence.cost.tokens();
  ++queued_sentences_;
  rows_ += sentence.cost.rows;
  positions_ += sentence.cost.positions;
}

void Admission::Joined(const WaitingSentence& sentence) {
  work_.Begin(sentence);
  ++running_sentences_;
  running_positions_ += sentence.cost.positions;
  queued_tokens_ -= sentence.cost.tokens();
  --queued_sentences_;
}

void Admission::Left(const WaitingSentence& sentence) {
  work_.Finish(sentence);
  --running_sentences_;
  running_positions_ -= sentence.cost.positions;
  rows_ -= sentence.cost.rows;
  positions_ -= sentence.cost.positions;
}

void Admission::Dropped(const WaitingSentence& sentence) {
  work_.Drop(sentence);
  queued_tokens_ -= sentence.cost.tokens();
  --queued_sentences_;
  rows_ -= sentence.cost.rows;
  positions_ -= sentence.cost.positions;
}

}  // namespace gshard
