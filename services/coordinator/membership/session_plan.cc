#include "services/coordinator/membership/session_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/config/model_config_proto.h"
#include "services/config/training_job_proto.h"
#include "services/coordinator/membership/training_memory.h"
#include "services/graph/text.h"
#include "services/graph/weight_forms.h"
#include "services/model/layers.h"
#include "services/model/transformer.h"
#include "services/rpc/wire/tensor_frame.h"
#include "services/segments/role_split.h"
#include "services/segments/segments_key.h"
#include "services/train/job_options.h"

namespace gshard {
namespace {

v1::Initializer InitializerToProto(const Initializer& initializer) {
  v1::Initializer out;
  switch (initializer.kind) {
    case InitializerKind::kZeros:
      out.set_kind(v1::Initializer::ZEROS);
      break;
    case InitializerKind::kOnes:
      out.set_kind(v1::Initializer::ONES);
      break;
    case InitializerKind::kNormal:
      out.set_kind(v1::Initializer::NORMAL);
      break;
    case InitializerKind::kUniformFanIn:
      out.set_kind(v1::Initializer::UNIFORM_FAN_IN);
      break;
  }
  out.set_stddev(initializer.stddev);
  out.set_fan_in(initializer.fan_in);
  return out;
}

// Appends the segments of `program`, and folds them into the router's key.
absl::Status AddSegments(
    const Program& program, v1::RouterSession* router,
    google::protobuf::RepeatedPtrField<v1::Segment>* segments) {
  ASSIGN_OR_RETURN(const RolePrograms roles, SplitRoles(program));
  router->set_segments_key(SegmentsKey(router->segments_key(), roles.segments));
  for (const Segment& segment : roles.segments) {
    v1::Segment* const out = segments->Add();
    out->set_name(segment.name);
    out->set_program(ProgramToText(segment.program));
  }
  return absl::OkStatus();
}

void AddParameters(const ModelConfig& model, v1::WorkerSession* session) {
  session->set_total_experts(static_cast<int32_t>(model.experts));
  for (const ParameterSpec& spec : ParametersOf(model, /*per_expert=*/true)) {
    v1::ExpertParameter* const out = session->add_parameters();
    out->set_name(spec.name);
    out->set_element_type(v1::ELEMENT_TYPE_FLOAT32);
    out->mutable_dims()->Add(spec.dims.begin(), spec.dims.end());
    *out->mutable_initializer() = InitializerToProto(spec.initializer);
  }
}

// Bytes of one expert's weights in all layers: operands of matrix products are
// stored in the type that these take.
int64_t ExpertBytes(const ModelConfig& model) {
  int64_t bytes = 0;
  for (const ParameterSpec& spec : ParametersOf(model, /*per_expert=*/true)) {
    const ElementType type = spec.dims.size() > 2
                                 ? WeightTypeFor(model.compute_type)
                                 : ElementType::kFloat32;
    bytes += BytesOfExpert(type, spec.dims);
  }
  return bytes;
}

// Fills in the window, and whether checkpoints are asynchronous.
absl::Status ChooseWindow(const TrainingJob& job,
                          const std::vector<WorkerShare>& shares,
                          int64_t dense_bytes, SessionPlan* plan) {
  const auto largest = [&](bool asynchronous) -> absl::StatusOr<int32_t> {
    ASSIGN_OR_RETURN(const int32_t dense,
                     LargestWindow(job, MemoryOfCoordinator(job), dense_bytes,
                                   "the coordinator", asynchronous));
    ASSIGN_OR_RETURN(const int32_t experts,
                     LargestWindow(job, shares, asynchronous));
    return std::min(dense, experts);
  };
  ASSIGN_OR_RETURN(plan->microbatch_window, largest(/*asynchronous=*/false));
  if (!job.checkpoint.asynchronous) return absl::OkStatus();
  // To wait for a checkpoint now and then costs less than small windows in all
  // steps.
  const absl::StatusOr<int32_t> beside = largest(/*asynchronous=*/true);
  if (!beside.ok() || 2 * *beside < plan->microbatch_window) {
    return absl::OkStatus();
  }
  plan->microbatch_window = *beside;
  plan->asynchronous_checkpoints = true;
  return absl::OkStatus();
}

// Fills in workers and placement. `load` is a worker's, without its experts and
// the window.
void PlaceExperts(const TrainingJob& job, const v1::LoadSession& load,
                  const std::vector<WorkerShare>& shares,
                  int64_t placement_version, SessionPlan* plan) {
  v1::Placement* const placement =
      plan->router_load.mutable_router()->mutable_placement();
  placement->set_version(placement_version);
  for (size_t i = 0; i < shares.size(); ++i) {
    const auto& [member, experts, replicated] = shares[i];
    const MemberInfo& info = member.info;
    if (!replicated.empty()) {
      const TrainingMemory memory =
          MemoryOfWorker(job, std::ssize(experts), std::ssize(replicated));
      plan->pushed_bytes =
          std::max(plan->pushed_bytes, static_cast<int64_t>(memory.gradient));
    }
    v1::WorkerPlacement* const out = placement->add_workers();
    out->set_name(info.id);
    out->set_address(info.address);
    out->mutable_experts()->Add(experts.begin(), experts.end());
    v1::LoadSession own = load;
    own.mutable_worker()->mutable_experts()->Add(experts.begin(),
                                                 experts.end());
    own.mutable_worker()->mutable_replicated_experts()->Add(replicated.begin(),
                                                            replicated.end());
    if (!replicated.empty()) {
      own.mutable_worker()->set_buddy_address(
          shares[(i + 1) % shares.size()].worker.info.address);
    }
    plan->workers.push_back(KeyOf(member));
    plan->worker_loads.push_back(std::move(own));
  }
  for (v1::LoadSession& own : plan->worker_loads) {
    own.mutable_worker()->set_microbatch_window(plan->microbatch_window);
  }
}

}  // namespace

v1::ParameterSource SourceOf(const TrainingJob& job,
                             const TrainingStart& start) {
  v1::ParameterSource source;
  if (start.checkpoint_directory.empty()) {
    source.set_initial_seed(job.seed);
  } else {
    source.set_checkpoint_directory(start.checkpoint_directory);
    source.set_weights_only(start.weights_only);
  }
  return source;
}

absl::StatusOr<SessionPlan> PlanTraining(const std::string& session,
                                         const TrainingJob& job,
                                         const TrainingStart& start,
                                         const std::vector<Member>& workers,
                                         int64_t dense_bytes,
                                         int64_t placement_version) {
  SessionPlan plan;
  plan.session = session;
  v1::LoadSession load;
  load.set_session(session);
  load.set_training(true);
  plan.router_load = load;

  v1::RouterSession* const router = plan.router_load.mutable_router();
  v1::WorkerSession* const worker = load.mutable_worker();
  ASSIGN_OR_RETURN(const Program program,
                   BuildTrainProgram(job.model, MakeLossConfig(job)));
  RETURN_IF_ERROR(AddSegments(program, router, worker->mutable_segments()));
  if (!DevFiles(job.data).empty()) {
    ASSIGN_OR_RETURN(const Program evaluation, BuildEvaluateProgram(job.model));
    RETURN_IF_ERROR(
        AddSegments(evaluation, router, worker->mutable_evaluation_segments()));
  }
  AddParameters(job.model, worker);
  *worker->mutable_source() = SourceOf(job, start);
  *worker->mutable_optimizer() = OptimizerConfigToProto(job.optimizer);
  worker->set_step(start.step);
  worker->set_skipped_steps(start.skipped_steps);
  worker->set_seed(job.seed);
  worker->set_microbatches_per_step(job.microbatches_per_step);
  const std::vector<WorkerShare> shares = ShareExperts(job, workers);
  RETURN_IF_ERROR(ChooseWindow(job, shares, dense_bytes, &plan));
  PlaceExperts(job, load, shares, placement_version, &plan);

  *router->mutable_model() = ModelConfigToProto(job.model);
  *router->mutable_job() = TrainingJobToProto(job);
  router->set_tokenizer_directory(start.tokenizer_directory);
  router->set_step(start.step);
  return plan;
}

absl::StatusOr<ServingPlan> PlanServing(
    const std::string& session, const ModelConfig& model,
    const std::string& checkpoint_directory) {
  ServingPlan plan;
  v1::RouterSession* const router = plan.router_load.mutable_router();
  v1::WorkerSession* const worker = plan.worker_load.mutable_worker();
  ASSIGN_OR_RETURN(const Program encode, BuildEncodeProgram(model));
  RETURN_IF_ERROR(AddSegments(encode, router, worker->mutable_segments()));
  ASSIGN_OR_RETURN(const Program decode, BuildDecodeProgram(model));
  RETURN_IF_ERROR(AddSegments(decode, router, worker->mutable_segments()));
  AddParameters(model, worker);
  worker->mutable_source()->set_checkpoint_directory(checkpoint_directory);

  plan.router_load.set_session(session);
  *router->mutable_model() = ModelConfigToProto(model);
  router->set_checkpoint_directory(checkpoint_directory);
  plan.expert_bytes = ExpertBytes(model);
  return plan;
}

}  // namespace gshard
