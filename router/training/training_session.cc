#include "router/training/training_session.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/model/parameters.h"
#include "services/model/transformer.h"
#include "services/segments/role_split.h"
#include "services/segments/segments_key.h"
#include "services/train/job_options.h"

namespace gshard {
namespace {

using Clock = std::chrono::steady_clock;

std::chrono::milliseconds LeftUntil(Clock::time_point deadline) {
  return std::max(std::chrono::milliseconds(1),
                  std::chrono::duration_cast<std::chrono::milliseconds>(
                      deadline - Clock::now()));
}

v1::MicrobatchStats StatsToProto(const StepStatistics& statistics) {
  v1::MicrobatchStats stats;
  stats.set_target_tokens(statistics.target_tokens);
  stats.set_sentences(statistics.sentences);
  stats.set_loss_sum(statistics.loss_sum);
  stats.set_logit_magnitude(statistics.logit_magnitude);
  for (const LayerStatistics& layer : statistics.layers) {
    v1::LayerStats* const out = stats.add_layers();
    out->set_balance_loss_sum(layer.balance_loss_sum);
    out->set_groups(layer.groups);
    out->set_gate_logit_magnitude(layer.logit_magnitude);
    out->set_routed_first(layer.routed_first);
    out->set_routed_second(layer.routed_second);
    out->set_overflow_first(layer.overflow_first);
    out->set_overflow_second(layer.overflow_second);
    out->mutable_expert_rows()->Add(layer.expert_rows.begin(),
                                    layer.expert_rows.end());
  }
  return stats;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TrainingSession>> TrainingSession::Create(
    TrainingSessionSpec spec, std::shared_ptr<grpc::Channel> coordinator,
    RouterMetrics metrics, std::stop_token stop) {
  const TrainingJob& job = spec.job;
  ASSIGN_OR_RETURN(const Program program,
                   BuildTrainProgram(job.model, MakeLossConfig(job)));
  ASSIGN_OR_RETURN(RolePrograms roles, SplitRoles(program));
  ASSIGN_OR_RETURN(const Program evaluation, BuildEvaluateProgram(job.model));
  ASSIGN_OR_RETURN(RolePrograms evaluation_roles, SplitRoles(evaluation));
  uint64_t key = SegmentsKey(0, roles.segments);
  if (!DevFiles(job.data).empty()) {  // else workers need no evaluation
    key = SegmentsKey(key, evaluation_roles.segments);
  }
  RETURN_IF_ERROR(CheckSegmentsKey(spec.segments_key, key));
  ASSIGN_OR_RETURN(auto text, TrainingText::Open(job, spec.tokenizer_directory,
                                                 spec.done_steps, stop));
  ASSIGN_OR_RETURN(SegmentCalls calls,
                   ReadSegmentCalls({&roles.router, &evaluation_roles.router}));
  std::unique_ptr<TrainingSession> session(new TrainingSession(
      std::move(spec), std::move(calls), std::move(roles.router),
      std::move(evaluation_roles.router), std::move(text),
      std::move(coordinator), std::move(metrics)));
  RETURN_IF_ERROR(session->runner_.status());
  RETURN_IF_ERROR(session->evaluator_.status());
  return session;
}

TrainingSession::TrainingSession(TrainingSessionSpec spec, SegmentCalls calls,
                                 Program program, Program evaluation,
                                 std::unique_ptr<TrainingText> text,
                                 std::shared_ptr<grpc::Channel> coordinator,
                                 RouterMetrics metrics)
    : spec_(std::move(spec)),
      runner_(spec_.job.model, std::move(program), spec_.device,
              /*keep_gradients=*/spec_.dense != nullptr),
      evaluator_(spec_.job.model, std::move(evaluation), spec_.device),
      text_(std::move(text)),
      coordinator_(std::move(coordinator)),
      metrics_(std::move(metrics)),
      calls_(std::move(calls)),
      workers_(spec_.job.model.experts, spec_.workers, metrics_.exchange) {
  for (const std::string& layer : MoeLayerNames(spec_.job.model)) {
    layers_.push_back(metrics_.OfLayer("", layer, spec_.job.model.experts));
  }
  for (const ParameterSpec& parameter :
       ParametersOf(spec_.job.model, /*per_expert=*/false)) {
    expected_[parameter.name] = {.type = ElementType::kFloat32,
                                 .dims = parameter.dims};
  }
}

absl::Status TrainingSession::CheckAssignment(
    const v1::AssignMicrobatch& assignment) const {
  if (assignment.step() < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("assign_microbatch.step: expected at least 1, got ",
                     assignment.step()));
  }
  const int64_t count = assignment.validation()
                            ? text_->validation_microbatches()
                            : spec_.job.microbatches_per_step;
  if (assignment.microbatch() < 0 || assignment.microbatch() >= count) {
    return absl::InvalidArgumentError(
        absl::StrCat("assign_microbatch.microbatch: expected 0 to ", count - 1,
                     ", got ", assignment.microbatch()));
  }
  if (assignment.timeout_ms() < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("assign_microbatch.timeout_ms: expected at least 1, got ",
                     assignment.timeout_ms()));
  }
  return absl::OkStatus();
}

absl::StatusOr<TrainingSession::Parameters> TrainingSession::PullVersion(
    int64_t version, std::chrono::milliseconds timeout) {
  MutexLock lock(parameters_mutex_);
  if (version == version_) return parameters_;
  if (spec_.dense != nullptr) {
    ASSIGN_OR_RETURN(const Parameters all, spec_.dense->ParametersOf(version));
    return Hold(version, *all);
  }
  v1::PullParametersRequest request;
  request.set_session(spec_.session);
  request.set_version(version);
  ASSIGN_OR_RETURN(const NamedTensors tensors,
                   PullParameters(coordinator_, request, expected_, timeout,
                                  transfers_.get_token()));
  return Hold(version, TensorMap(tensors.begin(), tensors.end()));
}

absl::StatusOr<TrainingSession::Parameters> TrainingSession::Hold(
    int64_t version, TensorMap parameters) {
  // Those of another version make room on the device.
  parameters_ = nullptr;
  version_ = -1;
  RETURN_IF_ERROR(runner_.Load(parameters));
  parameters_ = std::make_shared<const TensorMap>(std::move(parameters));
  version_ = version;
  return parameters_;
}

void TrainingSession::CountLayers(const StepStatistics& statistics) const {
  for (size_t i = 0; i < layers_.size(); ++i) {
    const LayerStatistics& layer = statistics.layers[i];
    layers_[i].Count(layer.expert_rows, layer.overflow_first,
                     layer.overflow_second);
  }
}

absl::StatusOr<MicrobatchResult> TrainingSession::Run(
    const v1::AssignMicrobatch& assignment, const TensorMap& parameters,
    SegmentRunner* segments, std::function<bool()> cancelled) const {
  const int32_t index = assignment.microbatch();
  const auto seed = static_cast<uint64_t>(spec_.job.seed);
  if (!assignment.validation()) {
    ASSIGN_OR_RETURN(const Batch batch, text_->Read(assignment.step(), index));
    return runner_.Run(batch, seed, assignment.step(), index, parameters,
                       segments, std::move(cancelled));
  }
  ASSIGN_OR_RETURN(const Batch batch, text_->ReadHeldOut(index));
  MicrobatchResult result;
  ASSIGN_OR_RETURN(result.statistics,
                   evaluator_.Evaluate(batch, seed, index, parameters, segments,
                                       std::move(cancelled)));
  return result;
}

absl::Status TrainingSession::HandOver(const v1::AssignMicrobatch& assignment,
                                       GradientList gradients,
                                       std::chrono::milliseconds timeout) {
  if (spec_.dense != nullptr) {
    return spec_.dense->Keep(assignment.step(), assignment.microbatch(),
                             assignment.attempt(), std::move(gradients));
  }
  NamedTensors tensors;
  for (auto& [name, gradient] : gradients) tensors[name] = std::move(gradient);
  v1::TensorFrameHeader header;
  header.set_session(spec_.session);
  header.set_step(assignment.step());
  header.set_microbatch(assignment.microbatch());
  header.set_attempt(assignment.attempt());
  return PushGradients(coordinator_, header, tensors, timeout,
                       transfers_.get_token());
}

absl::StatusOr<v1::MicrobatchStats> TrainingSession::RunMicrobatch(
    const v1::AssignMicrobatch& assignment) {
  RETURN_IF_ERROR(CheckAssignment(assignment));
  const Clock::time_point start = Clock::now();
  // Longer than a day is no limit; adding it might overflow.
  const Clock::time_point deadline =
      start + std::chrono::milliseconds(
                  std::min<int64_t>(assignment.timeout_ms(), 24 * 3600 * 1000));
  ASSIGN_OR_RETURN(
      const Parameters parameters,
      PullVersion(assignment.parameter_version(), LeftUntil(deadline)));
  ExchangeRun run{.step = assignment.step(),
                  .microbatch = assignment.microbatch(),
                  .attempt = assignment.attempt(),
                  .deadline = deadline};
  // Calls of a validation leave no state.
  if (assignment.validation()) run.step = run.microbatch = run.attempt = 0;
  ExpertExchange exchange(workers_, calls_, run);
  const uint64_t registration =
      interrupted_.OnCancel([&exchange] { exchange.Interrupt(); });
  absl::StatusOr<MicrobatchResult> result =
      Run(assignment, *parameters, &exchange, [this, deadline] {
        return interrupted_.cancelled() || Clock::now() > deadline;
      });
  interrupted_.Remove(registration);
  if (!result.ok()) {
    if (absl::IsCancelled(result.status()) && !interrupted_.cancelled() &&
        Clock::now() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "the microbatch was not done in ", assignment.timeout_ms(), " ms"));
    }
    return result.status();
  }
  if (!assignment.validation()) {
    RETURN_IF_ERROR(HandOver(assignment, std::move(result->gradients),
                             LeftUntil(deadline)));
    CountLayers(result->statistics);
  }
  v1::MicrobatchStats stats = StatsToProto(result->statistics);
  const Clock::duration duration = Clock::now() - start;
  stats.set_exchange_bytes(exchange.bytes());
  stats.set_exchange_micros(exchange.waited().count());
  stats.set_duration_micros(
      std::chrono::duration_cast<std::chrono::microseconds>(duration).count());
  metrics_.microbatch_seconds.Observe(
      std::chrono::duration<double>(duration).count());
  return stats;
}

int64_t TrainingSession::memory_bytes() const {
  const bool apart = spec_.dense != nullptr;
  int64_t bytes = text_->memory_bytes();
  if (apart) bytes += spec_.dense->memory_bytes();
  for (const auto& [name, tensor] : expected_) {
    // Parameters as the program takes them, and their gradients. A DenseShard
    // has these, and the parameters as float32, which are not copied.
    const auto form = runner_.weight_forms().find(name);
    const bool rounded = form != runner_.weight_forms().end() &&
                         form->second.type != ElementType::kFloat32;
    const int64_t held = rounded ? 2 : apart ? 0 : 4;
    bytes += NumElements(tensor.dims) * (held + (apart ? 0 : 4));
  }
  return bytes;
}

}  // namespace gshard
