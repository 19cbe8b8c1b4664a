#include "router/edge/intake.h"

#include <grpcpp/alarm.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "router/edge/translate_request.h"
#include "services/base/monotonic_time.h"
#include "services/base/retry_delay.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

using Clock = std::chrono::steady_clock;

// How much of its retry delay a refusal is delayed.
constexpr std::chrono::milliseconds kMaxHold{100};
constexpr int64_t kBytesPerMs = int64_t{10} << 10;  // of the request

// The preparer checks the deadline of the call or stream that brought a
// request; the request's own may be earlier.
absl::Status CheckTime(Clock::time_point deadline) {
  if (Clock::now() < deadline) return absl::OkStatus();
  return absl::DeadlineExceededError("the request was not prepared in time");
}

}  // namespace

struct Intake::Job {
  IncomingRequest request;
  int64_t bytes = 0;
  std::optional<TranslationDraft> draft;  // once it is parsed
  double seconds = 0;                     // preparation time
  OpenSpan span;                          // likewise, and of waiting for it
  std::string model;                      // as for IncomingRequest::done

  void End(absl::StatusOr<v1::TranslateResponse> response) {
    request.done(model, std::move(response));
  }
};

Intake::Intake(const ModelTable* models, Preparer* preparer, Batcher* batcher,
               RouterMetrics metrics)
    : models_(models),
      preparer_(preparer),
      batcher_(batcher),
      metrics_(std::move(metrics)) {}

absl::Status Intake::Take(IncomingRequest request) {
  RETURN_IF_ERROR(CheckRequestBytes(request.bytes));
  if (request.flow == 0) request.flow = batcher_->NewFlow();
  const std::shared_ptr<Cancellation> stop = request.stop;
  auto job = std::make_shared<Job>();
  job->bytes = static_cast<int64_t>(request.bytes.Length());
  job->request = std::move(request);
  job->span = batcher_->tracer().Child(job->request.trace, "prepare");
  job->span.Set("gshard.bytes", job->bytes);
  const auto id =
      preparer_->Add({.caller = job->request.caller,
                      .flow = job->request.flow,
                      .bytes = std::max<int64_t>(1, job->bytes),
                      .deadline = job->request.deadline,
                      .trace = job->request.trace,
                      .prepare_next = [this, job] { return Prepare(job); },
                      .give_up =
                          [job](const absl::Status& why) {
                            job->span.End(why);
                            job->End(why);
                          }});
  if (!id.ok()) {
    Refuse(job, id.status());
    return absl::OkStatus();
  }
  stop->OnCancel([preparer = preparer_, id = *id] { preparer->Cancel(id); });
  return absl::OkStatus();
}

int64_t Intake::Prepare(const std::shared_ptr<Job>& job) {
  const Clock::time_point start = Clock::now();
  absl::Status status = PrepareNext(*job);
  job->seconds += SecondsSince(start);
  if (status.ok()) {
    const int64_t next = job->draft->next_bytes();
    if (next > 0) return next;
    metrics_.tokenize_seconds.Observe(job->seconds,
                                      job->request.trace.sampled_id());
    job->span.Set("gshard.sentences",
                  static_cast<int64_t>(job->draft->sentences()));
    job->span.Set("gshard.work_micros",
                  static_cast<int64_t>(1e6 * job->seconds));
    job->span.End();
    status = Queue(job);
  }
  // Otherwise the batcher ends it, or has done so.
  if (!status.ok()) Refuse(job, status);
  return 0;
}

void Intake::Refuse(const std::shared_ptr<Job>& job,
                    const absl::Status& status) {
  job->span.End(status);
  job->request.bytes.Clear();
  job->draft.reset();
  const auto delay = RetryDelay(status).value_or(std::chrono::milliseconds(0));
  const auto hold = std::min(
      {delay, kMaxHold, std::chrono::milliseconds(job->bytes / kBytesPerMs)});
  if (hold.count() == 0 || !absl::IsResourceExhausted(status) ||
      !batcher_->HasWorkOf(job->request.caller)) {
    return job->End(status);
  }
  auto* const alarm = new grpc::Alarm;
  alarm->Set(std::chrono::system_clock::now() + hold,
             [job, alarm, why = WithRetryDelay(status, delay - hold)](bool) {
               job->End(why);
               delete alarm;
             });
}

absl::Status Intake::PrepareNext(Job& job) {
  RETURN_IF_ERROR(CheckTime(job.request.deadline));
  if (job.draft.has_value()) return job.draft->PrepareNext();
  ASSIGN_OR_RETURN(ParsedRequest parsed,
                   job.request.parse(std::exchange(job.request.bytes, {})));
  job.request.deadline = parsed.deadline;
  ASSIGN_OR_RETURN(
      job.draft,
      TranslationDraft::Begin(
          std::move(parsed.request),
          ModelAccess(models_, job.request.user, Role::kTranslate), job.model));
  return batcher_->Check(job.request.caller, job.request.flow,
                         job.draft->sentences(), kMinSourceTokens,
                         job.draft->OptionsOf(kMinSourceTokens),
                         job.request.deadline);
}

absl::Status Intake::Queue(const std::shared_ptr<Job>& job) {
  RETURN_IF_ERROR(CheckTime(job->request.deadline));
  PreparedTranslation prepared = std::move(*job->draft).Take();
  job->draft.reset();
  AnswerContext answer(prepared);
  const std::shared_ptr<Cancellation> stop = job->request.stop;
  ASSIGN_OR_RETURN(
      const uint64_t id,
      batcher_->Add({.model = std::move(prepared.model),
                     .sentences = std::move(prepared.sentences),
                     .deadline = job->request.deadline,
                     .trace = job->request.trace,
                     .caller = job->request.caller,
                     .flow = job->request.flow,
                     .done = [this, job, answer = std::move(answer)](
                                 const auto& results) mutable {
                       auto response = Answer(answer, results);
                       // Removal of the model waits for this.
                       answer.model = nullptr;
                       metrics_.CountAdmitted(response.status().code());
                       job->End(std::move(response));
                     }}));
  // The request may have ended, and its caller be gone.
  stop->OnCancel([batcher = batcher_, id] { batcher->Cancel(id); });
  return absl::OkStatus();
}

absl::StatusOr<v1::TranslateResponse> Intake::Answer(
    const AnswerContext& context,
    const absl::StatusOr<std::vector<Hypotheses>>& results) const {
  if (!results.ok()) return results.status();
  const Clock::time_point start = Clock::now();
  auto response = MakeAnswer(context, *results);
  metrics_.detokenize_seconds.Observe(SecondsSince(start));
  return response;
}

}  // namespace gshard
