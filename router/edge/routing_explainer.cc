#include "router/edge/routing_explainer.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"
#include "router/edge/translate_request.h"
#include "services/base/retry_delay.h"
#include "services/base/status_macros.h"
#include "services/rpc/wire/trace_scope.h"

namespace gshard {
namespace {

using Tokens = google::protobuf::RepeatedPtrField<v1::TokenRouting>;

void AddTokens(const std::vector<std::string>& pieces,
               const std::vector<LayerRouting>& layers,
               const std::vector<std::vector<std::string>>& hosts,
               Tokens& tokens) {
  for (size_t t = 0; t < pieces.size(); ++t) {
    v1::TokenRouting& token = *tokens.Add();
    token.set_piece(pieces[t]);
    for (const LayerRouting& layer : layers) {
      v1::TokenLayerRouting& routing = *token.add_layers();
      routing.set_layer(layer.layer);
      for (const ExpertVisit& visit : layer.tokens[t]) {
        v1::ExpertVisit& proto = *routing.add_visits();
        proto.set_expert(visit.expert);
        proto.set_weight(visit.weight);
        proto.set_overflowed(visit.overflowed);
        for (const std::string& host : hosts[visit.expert]) {
          proto.add_hosts(host);
        }
      }
    }
  }
}

absl::StatusOr<v1::ExplainRoutingResponse> ExplainNow(
    const grpc::ByteBuffer& bytes, const ModelAccess& models,
    const BatchRun& run) {
  ASSIGN_OR_RETURN(const v1::ExplainRoutingRequest request,
                   ParseExplainRoutingRequest(bytes));
  const v1::Sentence& sentence = request.sentence();
  if (!sentence.target_prefix().empty() || sentence.keep_size() > 0) {
    return absl::InvalidArgumentError(
        "sentence: expected no target_prefix and no keep");
  }
  // Checked like a translation, with the target as its prefix.
  v1::TranslateRequest translation;
  translation.set_model(request.model());
  *translation.add_sentences() = sentence;
  translation.mutable_sentences(0)->set_target_prefix(request.target());
  const auto model = models.Find(request.model());
  if (model.ok()) {
    translation.mutable_options()->set_max_length(
        static_cast<int32_t>((*model)->max_positions()));
  }
  auto checked = PrepareTranslation(std::move(translation), models);
  if (!checked.ok()) {
    return absl::Status(
        checked.status().code(),
        absl::StrReplaceAll(checked.status().message(),
                            {{"sentences[0].target_prefix", "target"},
                             {"sentences[0]", "sentence"}}));
  }
  const PreparedTranslation prepared = *std::move(checked);
  const SourceSentence& source = prepared.sentences[0];
  ASSIGN_OR_RETURN(
      const RoutingReport report,
      prepared.model->ExplainRouting(source.ids, source.options.prefix, run));
  v1::ExplainRoutingResponse response;
  response.set_model(prepared.model->id());
  AddTokens(report.source, report.trace.source, report.hosts,
            *response.mutable_source());
  AddTokens(report.target, report.trace.target, report.hosts,
            *response.mutable_target());
  return response;
}

}  // namespace

RoutingExplainer::RoutingExplainer(const ModelTable* models, bool enabled)
    : models_(models), enabled_(enabled) {}

RoutingExplainer::~RoutingExplainer() {
  {
    MutexLock lock(mutex_);
    if (running_ != nullptr) running_->Cancel();
  }
  if (thread_.joinable()) thread_.join();
}

void RoutingExplainer::Explain(Call call) {
  if (!enabled_) {
    call.done(absl::PermissionDeniedError(
        "the router was started without --enable_debug_calls"));
    return;
  }
  MutexLock lock(mutex_);
  if (running_ != nullptr) {
    lock.Unlock();
    call.done(WithRetryDelay(
        absl::ResourceExhaustedError("another ExplainRouting is running"),
        std::chrono::milliseconds(1000)));
    return;
  }
  running_ = call.stop;
  if (thread_.joinable()) thread_.join();  // it is over
  thread_ = std::thread([this, call = std::move(call)] {
    const TraceScope scope(call.trace);
    auto response = ExplainNow(
        call.request, ModelAccess(models_, call.user, Role::kAdmin),
        {.deadline = call.deadline, .all_cancelled = call.stop.get()});
    {
      MutexLock running_lock(mutex_);
      running_ = nullptr;
    }
    call.done(std::move(response));
  });
}

}  // namespace gshard
