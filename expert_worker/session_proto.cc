#include "expert_worker/session_proto.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/config/training_job_proto.h"
#include "services/graph/text.h"
#include "services/train/job_options.h"

namespace gshard {
namespace {

absl::StatusOr<Initializer> InitializerFromProto(
    const v1::Initializer& message) {
  Initializer initializer{.kind = InitializerKind::kZeros,
                          .stddev = message.stddev(),
                          .fan_in = message.fan_in()};
  switch (message.kind()) {
    case v1::Initializer::ZEROS:
      return initializer;
    case v1::Initializer::ONES:
      initializer.kind = InitializerKind::kOnes;
      return initializer;
    case v1::Initializer::NORMAL:
      initializer.kind = InitializerKind::kNormal;
      return initializer;
    case v1::Initializer::UNIFORM_FAN_IN:
      initializer.kind = InitializerKind::kUniformFanIn;
      return initializer;
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "initializer.kind: expected 1 to 4, got ", message.kind()));
  }
}

absl::StatusOr<ParameterSpec> ParameterFromProto(
    const v1::ExpertParameter& message) {
  if (message.element_type() != v1::ELEMENT_TYPE_FLOAT32) {
    return absl::InvalidArgumentError(
        absl::StrCat("element_type: expected ELEMENT_TYPE_FLOAT32, got ",
                     message.element_type()));
  }
  ASSIGN_OR_RETURN(const Initializer initializer,
                   InitializerFromProto(message.initializer()));
  return ParameterSpec{
      .name = message.name(),
      .dims = Dims(message.dims().begin(), message.dims().end()),
      .per_expert = true,
      .initializer = initializer};
}

absl::Status SegmentsFromProto(
    const google::protobuf::RepeatedPtrField<v1::Segment>& messages,
    std::vector<Segment>* segments) {
  for (const v1::Segment& segment : messages) {
    absl::StatusOr<Program> program = ParseProgram(segment.program());
    if (!program.ok()) {
      // Any error in it, e.g. an operator that is unknown here.
      return absl::InvalidArgumentError(absl::StrCat(
          "segment '", segment.name(), "': ", program.status().message()));
    }
    segments->push_back({segment.name(), *std::move(program)});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<WorkerSessionSpec> WorkerSessionFromProto(
    const v1::LoadSession& message) {
  if (!message.has_worker()) {
    return absl::InvalidArgumentError("worker: expected a worker's session");
  }
  const v1::WorkerSession& worker = message.worker();
  WorkerSessionSpec spec;
  RETURN_IF_ERROR(SegmentsFromProto(worker.segments(), &spec.segments));
  for (const v1::ExpertParameter& parameter : worker.parameters()) {
    absl::StatusOr<ParameterSpec> parsed = ParameterFromProto(parameter);
    if (!parsed.ok()) {
      return Annotate(parsed.status(),
                      absl::StrCat("parameter '", parameter.name(), "'"));
    }
    spec.parameters.push_back(*std::move(parsed));
  }
  spec.experts.assign(worker.experts().begin(), worker.experts().end());
  spec.total_experts = worker.total_experts();

  switch (worker.source().from_case()) {
    case v1::ParameterSource::kCheckpointDirectory:
      if (worker.source().checkpoint_directory().empty()) {
        return absl::InvalidArgumentError(
            "source.checkpoint_directory: expected a path, got nothing");
      }
      spec.source.checkpoint_directory = worker.source().checkpoint_directory();
      break;
    case v1::ParameterSource::kInitialSeed:
      spec.source.initial_seed =
          static_cast<uint64_t>(worker.source().initial_seed());
      break;
    case v1::ParameterSource::FROM_NOT_SET:
      return absl::InvalidArgumentError(
          "source: expected a checkpoint or a seed, got neither");
  }
  if (!message.training()) return spec;
  if (worker.optimizer().kind_case() == v1::ExpertOptimizer::KIND_NOT_SET) {
    return absl::InvalidArgumentError("optimizer: required in training");
  }
  ASSIGN_OR_RETURN(const OptimizerConfig optimizer,
                   OptimizerConfigFromProto(worker.optimizer()));
  RETURN_IF_ERROR(SegmentsFromProto(worker.evaluation_segments(),
                                    &spec.evaluation_segments));
  spec.optimizer = MakeOptimizer(optimizer);
  spec.source.step = worker.step();
  spec.source.skipped_steps = worker.skipped_steps();
  spec.source.weights_only = worker.source().weights_only();
  spec.microbatches_per_step = worker.microbatches_per_step();
  spec.microbatch_window = worker.microbatch_window();
  spec.replicated_experts.assign(worker.replicated_experts().begin(),
                                 worker.replicated_experts().end());
  spec.buddy_address = worker.buddy_address();
  return spec;
}

}  // namespace gshard
