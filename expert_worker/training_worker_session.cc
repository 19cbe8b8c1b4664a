#include "expert_worker/training_worker_session.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

std::string RunName(const SegmentRun& run) {
  return absl::StrCat(run.step, "/", run.microbatch, "/", run.attempt);
}

// Gradients that wait for earlier ones are never given up: without room for all
// that may wait, and one more, no step might ever end.
absl::Status CheckWindow(const WorkerSessionSpec& spec,
                         const MemoryAccount& account) {
  int64_t gradient = 0;
  for (const ParameterSpec& parameter : spec.parameters) {
    gradient += BytesOfExpert(ElementType::kFloat32, parameter.dims) *
                std::ssize(spec.experts);
  }
  const int64_t free = account.free();
  if (gradient == 0 || spec.microbatch_window <= free / gradient) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("microbatch_window: the gradients of ",
                   spec.microbatch_window, " microbatches take ", gradient,
                   " bytes each, and ", free, " bytes are free"));
}

}  // namespace

TrainingWorkerSession::TrainingWorkerSession(
    WorkerSessionSpec spec, MemoryAccount account, MemoryShare memory,
    std::unique_ptr<ParameterShard> own,
    std::unique_ptr<ParameterShard> replica, Device* device)
    : WorkerSession(std::move(memory)),
      account_(std::move(account)),
      device_(device),
      host_(std::move(spec.segments), device),
      evaluation_host_(std::move(spec.evaluation_segments), device),
      weight_forms_(host_.weight_forms()),
      own_(std::move(own)),
      replica_(std::move(replica)) {
  const int64_t window = spec.microbatch_window > 0
                             ? spec.microbatch_window
                             : spec.microbatches_per_step;
  own_->BeginStep(static_cast<int32_t>(spec.microbatches_per_step),
                  static_cast<int32_t>(window));
  parameters_ = RoundedParameters();
}

absl::StatusOr<std::unique_ptr<WorkerSession>> TrainingWorkerSession::Create(
    WorkerSessionSpec spec, MemoryAccount account, MemoryShare memory,
    Device* device) {
  RETURN_IF_ERROR(CheckWindow(spec, account));
  ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointReader> checkpoint,
                   OpenToTrain(spec.source));
  const auto make = [&](const std::vector<int32_t>& experts)
      -> absl::StatusOr<std::unique_ptr<ParameterShard>> {
    ParameterStore store(spec.parameters, experts, spec.optimizer, device);
    RETURN_IF_ERROR(store.Load(checkpoint.get(), spec.source.initial_seed,
                               spec.source.stop, spec.source.weights_only));
    return std::make_unique<ParameterShard>(std::move(store), spec.source.step);
  };
  std::unique_ptr<ParameterShard> replica;
  ASSIGN_OR_RETURN(auto own, make(spec.experts));
  if (!spec.replicated_experts.empty()) {
    ASSIGN_OR_RETURN(replica, make(spec.replicated_experts));
  }
  std::unique_ptr<TrainingWorkerSession> session(new TrainingWorkerSession(
      std::move(spec), std::move(account), std::move(memory), std::move(own),
      std::move(replica), device));
  RETURN_IF_ERROR(session->host_.status());
  RETURN_IF_ERROR(session->evaluation_host_.status());
  ReaderMutexLock lock(session->step_mutex_);
  RETURN_IF_ERROR(session->parameters_.status());
  return session;
}

absl::StatusOr<TensorMap> TrainingWorkerSession::RoundedParameters() const {
  TensorMap parameters = own_->tensors();
  RETURN_IF_ERROR(CastToBf16(weight_forms_, device_, parameters));
  return parameters;
}

absl::StatusOr<std::vector<Tensor>> TrainingWorkerSession::RunSegment(
    const SegmentRun& run, TensorMap inputs) {
  ReaderMutexLock lock(step_mutex_);
  RETURN_IF_ERROR(parameters_.status());
  if (run.step == 0 && run.microbatch == 0 && run.attempt == 0) {
    ASSIGN_OR_RETURN(SegmentResult result,
                     evaluation_host_.Run(run.segment, /*run=*/"",
                                          std::move(inputs), *parameters_));
    return std::move(result.replies);
  }
  const std::string name = RunName(run);
  RETURN_IF_ERROR(EnterRun(run, name));
  absl::StatusOr<SegmentResult> result =
      host_.Run(run.segment, name, std::move(inputs), *parameters_);
  const absl::Status kept = KeepResult(run, name, result);
  if (!kept.ok()) {
    DropRun(run, name);
    return kept;
  }
  return std::move(result->replies);
}

absl::Status TrainingWorkerSession::EnterRun(const SegmentRun& run,
                                             const std::string& name) {
  MutexLock lock(runs_mutex_);
  RETURN_IF_ERROR(own_->Begin(run.step, run.microbatch, run.attempt));
  const auto given_up = given_up_.find(run.microbatch);
  if (given_up != given_up_.end() && given_up->second == run.attempt) {
    return absl::AbortedError(absl::StrCat(
        "microbatch ", run.microbatch, ", attempt ", run.attempt,
        " has made way for an earlier microbatch, or its router was lost"));
  }
  const auto open = runs_.find(run.microbatch);
  if (open != runs_.end()) {
    if (open->second.attempt == run.attempt) return absl::OkStatus();
    host_.EndRun(open->second.name);  // superseded
    runs_.erase(open);
  }
  runs_.emplace(run.microbatch, OpenRun{.name = name,
                                        .owner = run.owner,
                                        .attempt = run.attempt,
                                        .memory = MemoryShare(account_),
                                        .gradient_bytes = 0,
                                        .gradients = {}});
  return absl::OkStatus();
}

absl::Status TrainingWorkerSession::KeepResult(
    const SegmentRun& run, const std::string& name,
    absl::StatusOr<SegmentResult>& result) {
  MutexLock lock(runs_mutex_);
  const auto found = runs_.find(run.microbatch);
  if (found == runs_.end() || found->second.attempt != run.attempt) {
    return absl::AbortedError(
        absl::StrCat("run ", name, " has ended while a segment of it ran"));
  }
  RETURN_IF_ERROR(result.status());
  OpenRun& open = found->second;
  const int64_t gradient_bytes = BytesOf(result->gradients);
  RETURN_IF_ERROR(
      TakeMemory(run.microbatch, result->saved_bytes + gradient_bytes, &open));
  open.gradient_bytes += gradient_bytes;
  std::move(result->gradients.begin(), result->gradients.end(),
            std::back_inserter(open.gradients));
  if (!result->run_ended) return absl::OkStatus();
  RETURN_IF_ERROR(own_->Add(run.step, run.microbatch, run.attempt,
                            std::move(open.gradients)));
  // The sum may have absorbed early ones, too.
  const auto next = static_cast<int32_t>(own_->next());
  early_.erase(early_.begin(), early_.lower_bound(next));
  if (run.microbatch >= next) {
    open.memory.Return(open.gradient_bytes);
    early_.try_emplace(run.microbatch, std::move(open.memory));
  }
  runs_.erase(found);
  return absl::OkStatus();
}

absl::Status TrainingWorkerSession::TakeMemory(int32_t microbatch,
                                               int64_t bytes, OpenRun* run) {
  while (!run->memory.Take(bytes)) {
    const auto latest = std::prev(runs_.end());
    if (latest->first <= microbatch) {
      return absl::ResourceExhaustedError(
          absl::StrCat("microbatch ", microbatch, " has to keep ", bytes,
                       " bytes more, of which ", account_.free(), " are free"));
    }
    GiveUp(latest);
  }
  return absl::OkStatus();
}

void TrainingWorkerSession::GiveUp(OpenRuns::iterator run) {
  given_up_[run->first] = run->second.attempt;
  host_.EndRun(run->second.name);
  runs_.erase(run);
}

void TrainingWorkerSession::DropRun(const SegmentRun& run,
                                    const std::string& name) {
  MutexLock lock(runs_mutex_);
  // A late call may have saved values after the run's end.
  host_.EndRun(name);
  const auto open = runs_.find(run.microbatch);
  if (open != runs_.end() && open->second.attempt == run.attempt) {
    runs_.erase(open);
  }
}

void TrainingWorkerSession::EndRuns(uint64_t owner) {
  MutexLock lock(runs_mutex_);
  for (auto it = runs_.begin(); it != runs_.end();) {
    const auto run = it++;
    if (run->second.owner == owner) GiveUp(run);
  }
}

absl::StatusOr<std::vector<SquaredNorm>> TrainingWorkerSession::PrepareStep(
    int64_t step, absl::Span<const int32_t> attempts) {
  WriterMutexLock lock(step_mutex_);
  return own_->Prepare(step, attempts);
}

std::vector<NamedShape> TrainingWorkerSession::ReplicaShapes() const {
  if (replica_ == nullptr) return {};
  return replica_->shapes();
}

absl::Status TrainingWorkerSession::ReplicateGradients(int64_t step,
                                                       GradientList sums) {
  ReaderMutexLock lock(step_mutex_);
  if (replica_ == nullptr) {
    return absl::FailedPreconditionError("the session keeps no replica");
  }
  if (step == replica_->step() && step > 0) return absl::OkStatus();
  return replica_->PrepareSums(step, /*of=*/{}, [&] { return std::move(sums); })
      .status();
}

absl::Status TrainingWorkerSession::CommitStep(int64_t step,
                                               double gradient_scale,
                                               double learning_rate,
                                               bool skip) {
  WriterMutexLock lock(step_mutex_);
  RETURN_IF_ERROR(own_->CheckCommit(step, gradient_scale, learning_rate));
  if (step == own_->step()) return absl::OkStatus();
  if (replica_ != nullptr) {
    RETURN_IF_ERROR(
        Annotate(replica_->Commit(step, gradient_scale, learning_rate, skip),
                 "the replica of another worker's experts"));
  }
  if (!skip) parameters_ = TensorMap();  // shared tensors would be copied
  const absl::Status committed =
      own_->Commit(step, gradient_scale, learning_rate, skip);
  if (!committed.ok()) {
    parameters_ = committed;
    return committed;
  }
  if (!skip) parameters_ = RoundedParameters();
  MutexLock runs_lock(runs_mutex_);
  for (const auto& [microbatch, run] : runs_) host_.EndRun(run.name);
  runs_.clear();
  given_up_.clear();
  early_.clear();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<TrainingWorkerSession::Shard>>
TrainingWorkerSession::BeginCheckpoint(ShardTarget target,
                                       bool include_replica) const {
  ReaderMutexLock lock(step_mutex_);
  if (target.step != own_->step()) {
    return absl::FailedPreconditionError(
        absl::StrCat("expected the last step committed, ", own_->step(),
                     ", got ", target.step));
  }
  if (include_replica && replica_ == nullptr) {
    return absl::FailedPreconditionError("the session keeps no replica");
  }
  std::unique_ptr<Shard> shard(
      new Shard(this, std::move(target), ++last_shard_));
  RETURN_IF_ERROR(shard->Add(*own_));
  if (include_replica) RETURN_IF_ERROR(shard->Add(*replica_));
  shard->ReserveCopy();
  return shard;
}

void TrainingWorkerSession::Shard::ReserveCopy() {
  int64_t bytes = 0;
  for (const NamedTensor& named : tensors_) {
    bytes += static_cast<int64_t>(named.tensor.bytes());
  }
  // With a device these are copies already, on the host.
  outlasts_updates_ = session_->device_ != nullptr || memory_.Take(bytes);
}

absl::Status TrainingWorkerSession::Shard::Add(
    const ParameterShard& parameters) {
  ASSIGN_OR_RETURN(ParameterShard::Snapshot snapshot,
                   parameters.TakeSnapshot());
  tensors_.insert(tensors_.end(), snapshot->begin(), snapshot->end());
  snapshots_.push_back(std::move(snapshot));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TensorEntry>> TrainingWorkerSession::Shard::Write(
    const std::function<bool()>& abandoned, FaultPoints* faults) const {
  return WriteShard(
      target_, tensors_,
      [&] {
        return number_ != session_->last_shard_ || (abandoned && abandoned());
      },
      faults);
}

absl::StatusOr<TrainingWorkerSession*> AsTraining(WorkerSession& session) {
  TrainingWorkerSession* const training = session.training();
  if (training != nullptr) return training;
  return absl::FailedPreconditionError("the session does not train");
}

}  // namespace gshard
