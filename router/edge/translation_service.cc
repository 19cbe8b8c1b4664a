#include "router/edge/translation_service.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "router/edge/caller.h"
#include "router/edge/translate_request.h"
#include "router/models/model_access.h"
#include "services/base/monotonic_time.h"
#include "services/base/retry_delay.h"
#include "services/base/status_macros.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/server/call_info.h"
#include "services/rpc/server/server_stream.h"
#include "services/rpc/wire/status.h"

namespace gshard {
namespace {

using Clock = std::chrono::steady_clock;

absl::Status ShuttingDown() {
  return absl::UnavailableError("the router is shutting down");
}

absl::StatusOr<v1::ListModelsResponse> DescribeModels(
    const ModelAccess& models) {
  ASSIGN_OR_RETURN(const std::vector<ModelTable::Listed> listed, models.List());
  v1::ListModelsResponse response;
  for (const auto& [model, current] : listed) {
    v1::ServedModel& served = *response.add_models();
    served.set_model(model->id());
    served.set_current(current);
    served.set_full(model->full());
    served.mutable_source_languages()->Add(model->languages().begin(),
                                           model->languages().end());
    served.set_default_source_language(model->default_language());
    served.set_max_length(static_cast<int32_t>(model->max_positions()));
  }
  return response;
}

}  // namespace

// One call. gRPC notifies it of cancellation and of its end; the intake
// delivers the answer. Deletes itself.
class TranslationService::TranslateCall final
    : public grpc::ServerUnaryReactor {
 public:
  TranslateCall(const TranslationService& service,
                grpc::CallbackServerContext* context,
                grpc::ByteBuffer* response)
      : metrics_(service.metrics_),
        live_calls_(service.live_calls_),
        context_(context),
        info_(CallInfoOf(*context)),
        response_(response) {
    ++*live_calls_;
    metrics_.requests_in_flight.Add(1);
  }

  void Start(Intake& intake, std::chrono::milliseconds max_time,
             grpc::ByteBuffer request) {
    const auto deadline =
        start_ + RemainingTime(context_->deadline(), max_time);
    const absl::Status status = intake.Take(
        {.bytes = std::move(request),
         .user = info_.caller,
         .caller = CallerOf(info_, context_->peer()),
         .trace = info_.trace,
         .deadline = deadline,
         .stop = stop_,
         .parse = [deadline](
                      grpc::ByteBuffer bytes) -> absl::StatusOr<ParsedRequest> {
           ASSIGN_OR_RETURN(v1::TranslateRequest parsed,
                            ParseTranslateRequest(std::move(bytes)));
           return ParsedRequest{std::move(parsed), deadline};
         },
         .done =
             [this](const std::string& model, const auto& response) {
               if (response.ok()) *response_ = SerializeRaw(*response);
               End(model, response.status());
             }});
    // Otherwise the intake ends the call, or has done so.
    if (!status.ok()) End("", status);
  }

  void OnCancel() override { stop_->Cancel(); }

  void OnDone() override {
    metrics_.requests_in_flight.Add(-1);
    --*live_calls_;
    delete this;
  }

 private:
  // The call may be deleted when this returns.
  void End(const std::string& model, const absl::Status& status) {
    metrics_.CountCall(model, status.code(), SecondsSince(start_),
                       info_.trace.sampled_id());
    Finish(ToGrpcStatus(status));
  }

  const RouterMetrics metrics_;
  const std::shared_ptr<std::atomic<int>> live_calls_;
  grpc::CallbackServerContext* const context_;
  const CallInfo info_;
  grpc::ByteBuffer* const response_;
  const Clock::time_point start_ = Clock::now();
  const std::shared_ptr<Cancellation> stop_ = std::make_shared<Cancellation>();
};

// Likewise.
class TranslationService::ExplainCall final : public grpc::ServerUnaryReactor {
 public:
  explicit ExplainCall(const TranslationService& service)
      : live_calls_(service.live_calls_) {
    ++*live_calls_;
  }

  void Start(RoutingExplainer& explainer, std::chrono::milliseconds max_time,
             const grpc::CallbackServerContext& context,
             const grpc::ByteBuffer& request, grpc::ByteBuffer* response) {
    const absl::Status status = CheckRequestBytes(request);
    if (!status.ok()) return Finish(ToGrpcStatus(status));
    const CallInfo info = CallInfoOf(context);
    explainer.Explain(
        {.request = request,
         .user = info.caller,
         .deadline = Clock::now() + RemainingTime(context.deadline(), max_time),
         .trace = info.trace,
         .stop = stop_,
         .done = [this, response](auto explained) {
           if (explained.ok()) *response = SerializeRaw(*explained);
           Finish(ToGrpcStatus(explained.status()));
         }});
  }

  void OnCancel() override { stop_->Cancel(); }

  void OnDone() override {
    --*live_calls_;
    delete this;
  }

 private:
  const std::shared_ptr<std::atomic<int>> live_calls_;
  const std::shared_ptr<Cancellation> stop_ = std::make_shared<Cancellation>();
};

absl::Status TranslationService::Streams::Admit(const std::string& caller,
                                                int64_t most) {
  MutexLock lock(mutex);
  int64_t& open = by_caller[caller];
  if (open >= most) {
    return WithRetryDelay(
        absl::ResourceExhaustedError(absl::StrCat(
            "expected at most ", most, " open streams of one caller")),
        std::chrono::seconds(1));
  }
  ++open;
  return absl::OkStatus();
}

void TranslationService::Streams::Leave(const std::string& caller) {
  MutexLock lock(mutex);
  const auto found = by_caller.find(caller);
  if (--found->second == 0) by_caller.erase(found);
}

TranslationService::TranslationService(const ModelTable* models,
                                       Batcher* batcher, RouterMetrics metrics,
                                       const TranslationLimits& limits)
    : models_(models),
      batcher_(batcher),
      metrics_(std::move(metrics)),
      limits_(limits),
      explainer_(models, limits.debug_calls),
      preparer_(limits.preparer, metrics_),
      intake_(models, &preparer_, batcher, metrics_) {
  DeferRead(MethodIndex("gshard.v1.TranslationService.Translate"),
            &TranslationService::Translate);
  DeferRead(MethodIndex("gshard.v1.TranslationService.ListModels"),
            &TranslationService::ListModels);
  DeferRead(MethodIndex("gshard.v1.TranslationService.ExplainRouting"),
            &TranslationService::ExplainRouting);
}

grpc::ServerUnaryReactor* TranslationService::Translate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  auto* const call = new TranslateCall(*this, context, response);
  // What is parsed does not count in the limits of the preparer any more.
  call->Start(intake_, limits_.max_request_time, TakeRequest(*request));
  return call;
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>*
TranslationService::TranslateStream(grpc::CallbackServerContext* context) {
  const std::string caller = CallerOf(CallInfoOf(*context), context->peer());
  const absl::Status admitted =
      streams_->Admit(caller, limits_.max_caller_streams);
  auto stream = std::make_shared<TranslationStream*>(nullptr);
  auto on_over = [streams = streams_, live_calls = live_calls_, stream,
                  open_streams = metrics_.open_streams, caller,
                  counted = admitted.ok()] {
    open_streams.Add(-1);
    {
      MutexLock lock(streams->mutex);
      streams->live.erase(*stream);
    }
    if (counted) streams->Leave(caller);
    --*live_calls;
  };
  *stream =
      new TranslationStream({.intake = &intake_,
                             .flow = batcher_->NewFlow(),
                             .metrics = metrics_,
                             .max_sentences = limits_.max_stream_sentences,
                             .max_request_time = limits_.max_request_time,
                             .on_over = std::move(on_over)},
                            context);
  ++*live_calls_;
  metrics_.open_streams.Add(1);
  bool draining;
  {
    MutexLock lock(streams_->mutex);
    streams_->live.insert(*stream);
    draining = streams_->draining;
  }
  TranslationStream* const reactor = *stream;
  if (draining) {
    reactor->End(ShuttingDown());
  } else if (!admitted.ok()) {
    reactor->End(admitted);
  } else {
    reactor->Start();
  }
  return reactor;
}

grpc::ServerUnaryReactor* TranslationService::ListModels(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  const ModelAccess models(models_, CallInfoOf(*context).caller,
                           Role::kTranslate);
  return ServeUnary<v1::ListModelsRequest, v1::ListModelsResponse>(
      context, *request, response,
      [&](const v1::ListModelsRequest&, const auto& done) {
        done(DescribeModels(models));
      });
}

grpc::ServerUnaryReactor* TranslationService::ExplainRouting(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  auto* const call = new ExplainCall(*this);
  call->Start(explainer_, limits_.max_request_time, *context, *request,
              response);
  return call;
}

void TranslationService::DrainStreams() {
  MutexLock lock(streams_->mutex);
  streams_->draining = true;
  // None can be deleted meanwhile: that takes the lock.
  for (TranslationStream* const stream : streams_->live) {
    stream->End(ShuttingDown());
  }
}

void TranslationService::Finish(std::chrono::milliseconds grace) {
  const auto end = Clock::now() + grace;
  DrainStreams();
  preparer_.Finish(grace);
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
  batcher_->Finish(std::max(std::chrono::milliseconds(0), left));
}

}  // namespace gshard
