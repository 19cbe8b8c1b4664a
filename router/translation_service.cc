#include "router/translation_service.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "router/caller.h"
#include "router/translate_request.h"
#include "services/base/status_macros.h"
#include "services/rpc/call_info.h"
#include "services/rpc/channel.h"
#include "services/rpc/server_stream.h"
#include "services/rpc/status.h"

namespace gshard {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

// One call. gRPC tells it of the client's going and of its own end; the batcher
// tells it of the answer. Deletes itself.
class TranslationService::TranslateCall final
    : public grpc::ServerUnaryReactor {
 public:
  TranslateCall(const TranslationService& service,
                grpc::CallbackServerContext* context,
                grpc::ByteBuffer* response)
      : batcher_(service.batcher_),
        metrics_(service.metrics_),
        live_calls_(service.live_calls_),
        context_(context),
        response_(response) {
    ++*live_calls_;
    metrics_.requests_in_flight.Add(1);
  }

  void Start(const ModelTable& models, const grpc::ByteBuffer& request) {
    const absl::Status status = Queue(models, request);
    // Otherwise the batcher ends the call, or has already.
    if (!status.ok()) End(status);
  }

  void OnCancel() override { batcher_->Cancel(request_id_); }

  void OnDone() override {
    metrics_.requests_in_flight.Add(-1);
    --*live_calls_;
    delete this;
  }

 private:
  absl::Status Queue(const ModelTable& models,
                     const grpc::ByteBuffer& encoded) {
    ASSIGN_OR_RETURN(const v1::TranslateRequest request,
                     ParseTranslateRequest(encoded));
    ASSIGN_OR_RETURN(PreparedTranslation prepared,
                     PrepareTranslation(request, models));
    metrics_.tokenize_seconds.Observe(SecondsSince(start_));
    for (const SourceSentence& sentence : prepared.sentences) {
      // All but the tag.
      source_tokens_.push_back(static_cast<int32_t>(sentence.ids.size()) - 1);
    }
    model_ = prepared.model;
    require_full_ = request.require_full();
    if (require_full_ && !model_->full()) return NotFull();
    // The batcher may answer at once: nothing of this is used afterwards,
    // except the number, for which gRPC asks only once Translate() is over.
    ASSIGN_OR_RETURN(
        request_id_,
        batcher_->Add({.model = std::move(prepared.model),
                       .sentences = std::move(prepared.sentences),
                       .deadline = start_ + RemainingTime(context_->deadline(),
                                                          kMaxTranslateTime),
                       .trace = CallInfoOf(*context_).trace,
                       .caller = CallerOf(*context_),
                       .done = [this](auto results) {
                         End(Answer(std::move(results)));
                       }}));
    return absl::OkStatus();
  }

  absl::Status NotFull() const {
    return absl::UnavailableError(
        absl::StrCat("require_full: no expert worker is there for some experts "
                     "of model ",
                     model_->id()));
  }

  absl::Status Answer(absl::StatusOr<std::vector<Hypotheses>> results) {
    if (!results.ok()) return results.status();
    const Clock::time_point start = Clock::now();
    v1::TranslateResponse response;
    response.set_model(model_->id());
    for (size_t i = 0; i < results->size(); ++i) {
      v1::TranslationResult* const result = response.add_results();
      result->set_source_token_count(source_tokens_[i]);
      for (const DecodedHypothesis& decoded : (*results)[i]) {
        if (decoded.lost_share > 0.0) {
          if (require_full_) return NotFull();
          response.set_degraded(true);
          result->set_lost_choice_share(static_cast<float>(decoded.lost_share));
        }
        ASSIGN_OR_RETURN(std::string text, model_->Decode(decoded.ids));
        v1::Hypothesis* const hypothesis = result->add_hypotheses();
        hypothesis->set_text(std::move(text));
        hypothesis->set_score(static_cast<float>(decoded.score));
        hypothesis->set_token_count(decoded.token_count);
        hypothesis->set_truncated(decoded.truncated);
      }
    }
    *response_ = SerializeRaw(response);
    metrics_.detokenize_seconds.Observe(SecondsSince(start));
    return absl::OkStatus();
  }

  // The call may be gone when this returns.
  void End(const absl::Status& status) {
    model_ = nullptr;
    metrics_.CountRequest(status.code(), SecondsSince(start_));
    Finish(ToGrpcStatus(status));
  }

  Batcher* const batcher_;
  const RouterMetrics metrics_;
  const std::shared_ptr<std::atomic<int>> live_calls_;
  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer* const response_;
  const Clock::time_point start_ = Clock::now();
  std::shared_ptr<TranslationModel> model_;
  std::vector<int32_t> source_tokens_;
  bool require_full_ = false;
  uint64_t request_id_ = 0;
};

TranslationService::TranslationService(const ModelTable* models,
                                       Batcher* batcher, RouterMetrics metrics)
    : models_(models), batcher_(batcher), metrics_(std::move(metrics)) {}

grpc::ServerUnaryReactor* TranslationService::Translate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  auto* const call = new TranslateCall(*this, context, response);
  call->Start(*models_, *request);
  return call;
}

}  // namespace gshard
