#include "router/models/serving_session.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/checkpoint/checkpoint.h"
#include "services/exchange/expert_exchange.h"
#include "services/model/parameters.h"
#include "services/model/transformer.h"
#include "services/segments/role_split.h"
#include "services/segments/segments_key.h"
#include "services/train/parameter_source.h"

namespace gshard {
namespace {

// The encoder's and the decoder's programs, with expert choices among the
// outputs, for their costs.
struct ServedPrograms {
  RolePrograms encode, decode;
};

absl::StatusOr<ServedPrograms> BuildPrograms(const ModelConfig& model) {
  ServedPrograms programs;
  ASSIGN_OR_RETURN(const Program encode,
                   BuildEncodeProgram(model, /*routing=*/true));
  ASSIGN_OR_RETURN(programs.encode, SplitRoles(encode));
  ASSIGN_OR_RETURN(const Program decode,
                   BuildDecodeProgram(model, /*routing=*/true));
  ASSIGN_OR_RETURN(programs.decode, SplitRoles(decode));
  return programs;
}

std::string DefaultLanguage(const Manifest& manifest,
                            const Tokenizer& tokenizer) {
  const auto found = manifest.metadata.find(kDefaultLanguageKey);
  if (found != manifest.metadata.end() && !found->second.empty()) {
    return found->second;
  }
  return tokenizer.languages().size() == 1 ? tokenizer.languages()[0] : "";
}

std::map<std::string, LayerMetrics> LayersOf(const std::string& name,
                                             const ModelConfig& model,
                                             const RouterMetrics& metrics) {
  std::map<std::string, LayerMetrics> layers;
  for (const std::string& layer : MoeLayerNames(model)) {
    layers[layer] = metrics.OfLayer(name, layer, model.experts);
  }
  return layers;
}

// Maps errors about workers' state to what they mean for clients: the model
// cannot run here now.
absl::Status ToClient(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kCancelled:  // by the worker
      return absl::UnavailableError(status.message());
    case absl::StatusCode::kInvalidArgument:
      return absl::InternalError(status.message());
    default:
      return status;
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<ServingSession>> ServingSession::Create(
    ServingSessionSpec spec, RouterMetrics metrics) {
  const ModelConfig& model = spec.model;
  ASSIGN_OR_RETURN(ServedPrograms programs, BuildPrograms(model));
  const uint64_t derived = SegmentsKey(SegmentsKey(0, programs.encode.segments),
                                       programs.decode.segments);
  RETURN_IF_ERROR(CheckSegmentsKey(spec.segments_key, derived));
  spec.segments_key = derived;
  ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointReader> checkpoint,
                   CheckpointReader::Open(spec.checkpoint_directory));
  Tokenizers tokenizers;
  ASSIGN_OR_RETURN(std::string source, checkpoint->ReadTokenizer());
  ASSIGN_OR_RETURN(tokenizers.source,
                   Tokenizer::FromModelBytes(std::move(source)));
  RETURN_IF_ERROR(tokenizers.source->CheckVocabulary(
      "source", model.source_vocabulary_size));
  if (!checkpoint->manifest().target_tokenizer_file.empty()) {
    ASSIGN_OR_RETURN(std::string target, checkpoint->ReadTargetTokenizer());
    ASSIGN_OR_RETURN(tokenizers.own_target,
                     Tokenizer::FromModelBytes(std::move(target)));
  }
  RETURN_IF_ERROR(tokenizers.target().CheckVocabulary(
      "target", model.target_vocabulary_size));
  std::string default_language =
      DefaultLanguage(checkpoint->manifest(), *tokenizers.source);
  ASSIGN_OR_RETURN(
      SegmentCalls calls,
      ReadSegmentCalls({&programs.encode.router, &programs.decode.router}));
  std::shared_ptr<ServingSession> session(new ServingSession(
      std::move(spec), std::move(tokenizers), std::move(default_language),
      std::move(calls), std::move(programs.encode.router),
      std::move(programs.decode.router), std::move(metrics)));
  RETURN_IF_ERROR(session->translator_.status());
  ASSIGN_OR_RETURN(session->parameters_,
                   ReadParameters(ParametersOf(session->spec_.model,
                                               /*per_expert=*/false),
                                  /*experts=*/{}, checkpoint.get(), /*seed=*/0,
                                  session->translator_.weight_forms(),
                                  session->spec_.device, session->spec_.stop));
  for (const auto& [name, tensor] : session->parameters_) {
    session->memory_bytes_ += static_cast<int64_t>(tensor.bytes());
  }
  return session;
}

ServingSession::ServingSession(ServingSessionSpec spec, Tokenizers tokenizers,
                               std::string default_language, SegmentCalls calls,
                               Program encode, Program decode,
                               RouterMetrics metrics)
    : spec_(std::move(spec)),
      tokenizers_(std::move(tokenizers)),
      default_language_(std::move(default_language)),
      translator_(spec_.model, std::move(encode), std::move(decode),
                  TargetTokensOf(tokenizers_.target()), spec_.device),
      metrics_(std::move(metrics)),
      layers_(LayersOf(name(), spec_.model, metrics_)),
      decoded_tokens_(metrics_.decoded_tokens.With({name()})),
      calls_(std::move(calls)),
      replicas_(spec_.model.experts, spec_.replicas, metrics_.exchange),
      expert_rows_(spec_.model.experts) {
  metrics_.DeclareModel(name());
}

TargetTokens ServingSession::TargetTokensOf(const Tokenizer& tokenizer) {
  TargetTokens tokens{.bos = tokenizer.bos_id(),
                      .eos = tokenizer.eos_id(),
                      .never = {tokenizer.pad_id(), tokenizer.bos_id()},
                      .unk = tokenizer.unk_id()};
  for (const std::string& language : tokenizer.languages()) {
    const auto tag = tokenizer.LanguageTagId(language);
    if (tag.ok()) tokens.never.push_back(*tag);
  }
  return tokens;
}

absl::StatusOr<std::vector<int32_t>> ServingSession::Encode(
    absl::string_view text, absl::string_view language) const {
  const Tokenizer& tokenizer = *tokenizers_.source;
  const absl::StatusOr<int32_t> tag = tokenizer.LanguageTagId(language);
  if (!tag.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("source_", tag.status().message()));
  }
  ASSIGN_OR_RETURN(const std::vector<int32_t> pieces, tokenizer.Encode(text));
  std::vector<int32_t> ids = {*tag};
  ids.insert(ids.end(), pieces.begin(), pieces.end());
  ids.push_back(tokenizer.eos_id());
  return ids;
}

absl::StatusOr<std::vector<int32_t>> ServingSession::EncodeTarget(
    absl::string_view text) const {
  const Tokenizer& tokenizer = tokenizers_.target();
  ASSIGN_OR_RETURN(std::vector<int32_t> ids, tokenizer.Encode(text));
  if (ids.empty()) {
    return absl::InvalidArgumentError("expected text, got white space only");
  }
  const std::vector<int32_t>& never = translator_.never(false);
  for (const int32_t id : ids) {
    if (id != tokenizer.eos_id() &&
        std::find(never.begin(), never.end(), id) == never.end()) {
      continue;
    }
    return absl::InvalidArgumentError(
        "the model's vocabulary cannot write this text");
  }
  return ids;
}

absl::StatusOr<std::vector<int32_t>> ServingSession::EncodePhrase(
    absl::string_view text) const {
  ASSIGN_OR_RETURN(std::vector<int32_t> ids, EncodeTarget(text));
  ASSIGN_OR_RETURN(const std::string written, Decode(ids));
  if (written == text) return ids;
  return absl::InvalidArgumentError(
      absl::StrCat("the model's vocabulary cannot write this text as it is, "
                   "only as \"",
                   written, "\""));
}

int32_t ServingSession::CountUnknown(absl::Span<const int32_t> ids) const {
  return static_cast<int32_t>(
      std::count(ids.begin(), ids.end(), tokenizers_.source->unk_id()));
}

absl::StatusOr<std::string> ServingSession::Decode(
    absl::Span<const int32_t> ids) const {
  return tokenizers_.target().Decode(ids);
}

template <typename Work>
absl::Status ServingSession::Run(const BatchRun& run, const Work& work) {
  ExpertExchange exchange(replicas_, calls_, {.deadline = run.deadline});
  const auto interrupt = [&exchange] { exchange.Interrupt(); };
  const uint64_t by_batch = run.all_cancelled->OnCancel(interrupt);
  const uint64_t by_session = interrupted_.OnCancel(interrupt);
  DecodeStatistics statistics;
  const absl::Status status = work(&exchange, &statistics);
  run.all_cancelled->Remove(by_batch);
  interrupted_.Remove(by_session);
  for (const LayerLoad& layer : statistics.layers) {
    layers_.at(layer.layer)
        .Count(layer.expert_rows, layer.overflow_first, layer.overflow_second);
  }
  CountRows(statistics);
  if (statistics.decoded_tokens > 0) {
    decoded_tokens_.Increment(static_cast<double>(statistics.decoded_tokens));
  }
  if (interrupted_.cancelled()) {
    return absl::UnavailableError(
        absl::StrCat("model ", id(), " was unloaded"));
  }
  return exchange.interrupted() ? status : ToClient(status);
}

class ServingSession::Batch final : public ModelBatch {
 public:
  Batch(ServingSession& session, int64_t max_positions)
      : session_(session),
        batch_(session.translator_, session.parameters_, max_positions) {}

  absl::Status Join(absl::Span<const JoiningSentence> joining,
                    const BatchRun& run) override {
    return session_.Run(
        run, [&](SegmentRunner* segments, DecodeStatistics* statistics) {
          return batch_.Join(joining, segments, statistics);
        });
  }
  absl::Status Step(const BatchRun& run) override {
    return session_.Run(
        run, [&](SegmentRunner* segments, DecodeStatistics* statistics) {
          return batch_.Step(segments, statistics);
        });
  }
  void Leave(uint64_t id) override { batch_.Leave(id); }
  std::vector<FinishedSentence> TakeFinished() override {
    return batch_.TakeFinished();
  }
  int64_t rows() const override { return batch_.rows(); }

 private:
  ServingSession& session_;
  RunningBatch batch_;
};

std::unique_ptr<ModelBatch> ServingSession::NewBatch(int64_t max_positions) {
  return std::make_unique<Batch>(*this, max_positions);
}

void ServingSession::CountRows(const DecodeStatistics& statistics) {
  MutexLock lock(mutex_);
  for (const LayerLoad& layer : statistics.layers) {
    for (size_t e = 0; e < layer.expert_rows.size(); ++e) {
      expert_rows_[e] += layer.expert_rows[e];
    }
  }
}

std::vector<int64_t> ServingSession::expert_rows() const {
  MutexLock lock(mutex_);
  return expert_rows_;
}

absl::StatusOr<RoutingReport> ServingSession::ExplainRouting(
    const std::vector<int32_t>& source, const std::vector<int32_t>& target,
    const BatchRun& run) {
  ASSIGN_OR_RETURN(ServedPrograms programs, BuildPrograms(spec_.model));
  const RoutingTracer tracer(std::move(programs.encode.router),
                             std::move(programs.decode.router), spec_.device);
  std::vector<int32_t> read;
  if (!target.empty()) read.push_back(translator_.tokens().bos);
  read.insert(read.end(), target.begin(), target.end());
  RoutingReport report;
  RETURN_IF_ERROR(Run(run, [&](ExpertExchange* exchange, DecodeStatistics*) {
    const auto late = [&] {
      return std::chrono::steady_clock::now() >= run.deadline;
    };
    auto trace = tracer.Trace(source, read, parameters_, exchange, [&] {
      return exchange->interrupted() || late();
    });
    if (trace.ok()) report.trace = *std::move(trace);
    if (absl::IsCancelled(trace.status()) && !exchange->interrupted() &&
        late()) {
      return absl::DeadlineExceededError("the routing was not traced in time");
    }
    return trace.status();
  }));
  for (const int32_t id : source) {
    report.source.push_back(tokenizers_.source->IdToPiece(id));
  }
  for (const int32_t id : read) {
    report.target.push_back(tokenizers_.target().IdToPiece(id));
  }
  report.hosts.resize(spec_.model.experts);
  const ReplicaSet::Group group = replicas_.group();
  for (const ReplicaHolding& holding : group->holdings) {
    for (const int32_t expert : holding.experts) {
      report.hosts[expert].push_back(holding.worker);
    }
  }
  return report;
}

}  // namespace gshard
