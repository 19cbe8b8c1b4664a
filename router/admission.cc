#include "router/admission.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/retry_delay.h"

namespace gshard {
namespace {

using std::chrono::milliseconds;

// Nobody is told to come back sooner, or later.
constexpr double kShortestDelay = 0.01, kLongestDelay = 60.0;  // seconds

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
    case Verdict::kTooLate:
      return "too_late";
  }
  return "unknown";
}

Admission::Admission(const AdmissionLimits& limits, const BatchLimits& batch,
                     int batches)
    : limits_(limits), batch_(batch), batches_(batches) {}

Admission::Decision Admission::Refuse(Verdict verdict, std::string why,
                                      double tokens) const {
  const double seconds =
      times_.Seconds(tokens, static_cast<double>(rows_), /*longest=*/0,
                     static_cast<double>(batch_.max_rows), batches_);
  return {verdict,
          WithRetryDelay(absl::ResourceExhaustedError(why), ToDelay(seconds))};
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
        static_cast<double>(excess));
  }
  const int64_t its = work_.TokensOf(request.caller);
  if (its > 0 && its + tokens > limits_.max_caller_tokens) {
    return Refuse(
        Verdict::kCallerLimit,
        absl::StrCat("the caller has ", its,
                     " tokens waiting or running, and asks for ", tokens,
                     " more; at most ", limits_.max_caller_tokens, " may be"),
        static_cast<double>(
            std::min(its, its + tokens - limits_.max_caller_tokens)));
  }
  // Who finds nobody is taken: nothing new would be measured otherwise.
  if (work_.empty()) return {};
  const double wait = SecondsUntil(request);
  const double most =
      1e-3 * static_cast<double>(
                 std::min(request.time_left, limits_.max_wait).count());
  if (wait > most) {
    Decision late{
        Verdict::kTooLate,
        absl::ResourceExhaustedError(absl::StrCat(
            "an answer would take about ", static_cast<int64_t>(1000 * wait),
            " ms, there are ", static_cast<int64_t>(1000 * most), " ms"))};
    late.status = WithRetryDelay(late.status, ToDelay(wait - most));
    return late;
  }
  return {};
}

double Admission::SecondsUntil(const AdmissionRequest& request) const {
  int64_t longest = 0, rows = rows_;
  for (const SentenceCost& cost : request.costs) {
    longest = std::max(longest, cost.source_tokens);
    rows += cost.rows;
  }
  return times_.Seconds(
      work_.Until(request.caller, request.flow, request.tokens()),
      static_cast<double>(rows), static_cast<double>(longest),
      static_cast<double>(batch_.max_rows), batches_);
}

double Admission::EstimatedSeconds() const {
  return times_.Seconds(static_cast<double>(work_.tokens()),
                        static_cast<double>(rows_), /*longest=*/0,
                        static_cast<double>(batch_.max_rows), batches_);
}

void Admission::Queued(const WaitingSentence& sentence) {
  const int64_t tokens = sentence.cost.tokens();
  work_.Promise(sentence.caller, sentence.flow, tokens);
  queued_tokens_ += tokens;
  ++queued_sentences_;
  rows_ += sentence.cost.rows;
}

void Admission::Joined(const WaitingSentence& sentence) {
  const int64_t tokens = sentence.cost.tokens();
  work_.Begin(sentence.caller, sentence.flow, tokens);
  queued_tokens_ -= tokens;
  --queued_sentences_;
}

void Admission::Left(const WaitingSentence& sentence) {
  work_.Finish(sentence.caller, sentence.flow, sentence.cost.tokens());
  rows_ -= sentence.cost.rows;
}

void Admission::Dropped(const WaitingSentence& sentence) {
  const int64_t tokens = sentence.cost.tokens();
  work_.Drop(sentence.caller, sentence.flow, tokens);
  queued_tokens_ -= tokens;
  --queued_sentences_;
  rows_ -= sentence.cost.rows;
}

}  // namespace gshard
