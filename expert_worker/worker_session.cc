#include "expert_worker/worker_session.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

std::vector<std::string> ParameterNames(
    const std::vector<ParameterSpec>& parameters) {
  std::vector<std::string> names;
  for (const ParameterSpec& spec : parameters) names.push_back(spec.name);
  return names;
}

std::string RunName(const SegmentRun& run) {
  return absl::StrCat(run.step, "/", run.microbatch, "/", run.attempt);
}

absl::Status CheckFinite(double value, absl::string_view name) {
  if (std::isfinite(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": expected a finite number, got ", value));
}

int64_t BytesOf(const GradientList& gradients) {
  int64_t bytes = 0;
  for (const auto& [parameter, gradient] : gradients) {
    bytes += static_cast<int64_t>(gradient.bytes());
  }
  return bytes;
}

}  // namespace

WorkerSession::WorkerSession(WorkerSessionSpec spec, MemoryAccount account,
                             MemoryShare memory)
    : account_(std::move(account)),
      memory_(std::move(memory)),
      optimizer_(spec.optimizer),
      microbatches_(spec.microbatches_per_step),
      window_(spec.microbatch_window > 0 ? spec.microbatch_window
                                         : spec.microbatches_per_step + 1),
      host_(std::move(spec.segments)),
      evaluation_host_(std::move(spec.evaluation_segments)),
      step_(spec.step),
      store_(spec.parameters, std::move(spec.experts), spec.optimizer),
      replica_(spec.replicated_experts.empty()
                   ? nullptr
                   : std::make_unique<Replica>(
                         std::move(spec.parameters),
                         std::move(spec.replicated_experts), spec.optimizer)) {
  BeginStep();
}

absl::StatusOr<std::unique_ptr<WorkerSession>> WorkerSession::Create(
    WorkerSessionSpec spec, MemoryAccount account) {
  ASSIGN_OR_RETURN(const int64_t bytes, CheckWorkerSession(spec));
  MemoryShare memory(account);
  if (!memory.Take(bytes)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the session takes ", bytes, " bytes, of which ",
                     account.free(), " are free"));
  }
  const std::string directory = spec.checkpoint_directory;
  const uint64_t seed = spec.initial_seed;
  const int64_t expected_step = spec.step - spec.skipped_steps;
  std::unique_ptr<WorkerSession> session(
      new WorkerSession(std::move(spec), account, std::move(memory)));
  Replica* const replica = session->replica_.get();
  if (directory.empty()) {
    RETURN_IF_ERROR(session->store_.Initialize(seed));
    if (replica != nullptr) RETURN_IF_ERROR(replica->store().Initialize(seed));
    session->TakeParameters();
    return session;
  }
  ASSIGN_OR_RETURN(const auto checkpoint, CheckpointReader::Open(directory));
  if (session->training() && checkpoint->manifest().step != expected_step) {
    return absl::FailedPreconditionError(
        absl::StrCat("expected a checkpoint of step ", expected_step, ", got ",
                     checkpoint->manifest().step, " in ", directory));
  }
  RETURN_IF_ERROR(session->store_.Load(*checkpoint));
  if (replica != nullptr) RETURN_IF_ERROR(replica->store().Load(*checkpoint));
  session->TakeParameters();
  if (!session->training()) {
    RETURN_IF_ERROR(session->host_.WarmUp(
        static_cast<int64_t>(session->store_.experts().size()),
        session->parameters_));
  }
  return session;
}

void WorkerSession::TakeParameters() {
  parameters_ = store_.tensors();
  host_.RoundParameters(parameters_);
}

void WorkerSession::BeginStep() {
  prepared_.reset();
  refused_ = absl::OkStatus();
  if (!training()) return;
  gradients_ = std::make_unique<StepGradients>(ParameterNames(store_.specs()),
                                               microbatches_, window_ - 1);
}

absl::StatusOr<std::vector<Tensor>> WorkerSession::RunSegment(
    const SegmentRun& run, TensorMap inputs) {
  std::shared_lock<std::shared_mutex> lock(step_mutex_);
  const bool alone = run.step == 0 && run.microbatch == 0 && run.attempt == 0;
  if (training() && !alone) return RunTraining(run, std::move(inputs));
  if (!alone) {
    return absl::FailedPreconditionError(
        absl::StrCat("the session does not train, got step ", run.step));
  }
  SegmentHost& host = training() ? evaluation_host_ : host_;
  ASSIGN_OR_RETURN(
      SegmentResult result,
      host.Run(run.segment, /*run=*/"", std::move(inputs), parameters_));
  return std::move(result.replies);
}

absl::StatusOr<std::vector<Tensor>> WorkerSession::RunTraining(
    const SegmentRun& run, TensorMap inputs) {
  if (run.step != step_ + 1 || prepared_.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the session is at step ", step_ + 1,
                     prepared_.has_value() ? ", which is prepared" : "",
                     "; got step ", run.step));
  }
  const std::string name = RunName(run);
  RETURN_IF_ERROR(EnterRun(run, name));
  absl::StatusOr<SegmentResult> result =
      host_.Run(run.segment, name, std::move(inputs), parameters_);
  absl::Status status = result.ok() ? Hold(run, name, result->saved_bytes,
                                           BytesOf(result->gradients))
                                    : Hold(run, name, 0, 0);
  if (status.ok()) status = result.status();
  if (status.ok()) {
    status = gradients_->Add(run.microbatch, run.attempt,
                             std::move(result->gradients), result->run_ended);
  }
  if (status.ok() && result->run_ended) CompleteRun(name);
  if (!status.ok()) {
    EndRun(name);
    gradients_->Drop(run.microbatch, run.attempt);
    return status;
  }
  return std::move(result->replies);
}

absl::Status WorkerSession::EnterRun(const SegmentRun& run,
                                     const std::string& name) {
  std::optional<int32_t> superseded;
  {
    std::lock_guard<std::mutex> runs_lock(runs_mutex_);
    ASSIGN_OR_RETURN(superseded,
                     gradients_->Enter(run.microbatch, run.attempt));
    runs_.try_emplace(name, OpenRun{run.owner, run.microbatch, run.attempt,
                                    MemoryShare(account_), 0});
  }
  if (superseded.has_value()) {
    SegmentRun old = run;
    old.attempt = *superseded;
    EndRun(RunName(old));
  }
  return absl::OkStatus();
}

absl::Status WorkerSession::Hold(const SegmentRun& run, const std::string& name,
                                 int64_t saved_bytes, int64_t gradient_bytes) {
  const int64_t bytes = saved_bytes + gradient_bytes;
  std::vector<std::string> ended;
  absl::Status status;
  {
    std::lock_guard<std::mutex> lock(runs_mutex_);
    const auto own = runs_.find(name);
    if (own == runs_.end()) {
      return absl::AbortedError(
          absl::StrCat("run ", name, " has ended while a segment of it ran"));
    }
    // Whoever has brought the sum further may not have come to this yet.
    DropSummed();
    while (!own->second.memory.Take(bytes)) {
      const auto latest = std::max_element(
          runs_.begin(), runs_.end(), [](const auto& a, const auto& b) {
            return a.second.microbatch < b.second.microbatch;
          });
      if (latest->second.microbatch <= run.microbatch) {
        status = absl::ResourceExhaustedError(absl::StrCat(
            "microbatch ", run.microbatch, " has to keep ", bytes,
            " bytes more, of which ", account_.free(), " are free"));
        break;
      }
      ended.push_back(latest->first);
      LetGo(latest);
    }
    own->second.gradient_bytes += gradient_bytes;
  }
  for (const std::string& latest : ended) host_.EndRun(latest);
  return status;
}

void WorkerSession::CompleteRun(const std::string& name) {
  host_.EndRun(name);
  std::lock_guard<std::mutex> lock(runs_mutex_);
  const auto own = runs_.find(name);
  if (own != runs_.end()) LetGo(own);
  DropSummed();
}

void WorkerSession::DropSummed() {
  const auto next = static_cast<int32_t>(gradients_->next());
  early_.erase(early_.begin(), early_.lower_bound(next));
}

void WorkerSession::LetGo(std::map<std::string, OpenRun>::iterator run) {
  OpenRun& open = run->second;
  const bool complete = !gradients_->Abandon(open.microbatch, open.attempt);
  if (complete && open.microbatch >= gradients_->next()) {
    open.memory.Return(open.gradient_bytes);
    early_.try_emplace(open.microbatch, std::move(open.memory));
  }
  runs_.erase(run);
}

void WorkerSession::EndRun(const std::string& name) {
  host_.EndRun(name);
  std::lock_guard<std::mutex> lock(runs_mutex_);
  runs_.erase(name);
}

void WorkerSession::EndRuns(uint64_t owner) {
  std::shared_lock<std::shared_mutex> lock(step_mutex_);
  std::vector<std::string> ended;
  {
    std::lock_guard<std::mutex> runs_lock(runs_mutex_);
    for (auto it = runs_.begin(); it != runs_.end();) {
      const auto run = it++;
      if (run->second.owner != owner) continue;
      ended.push_back(run->first);
      LetGo(run);
    }
  }
  for (const std::string& name : ended) host_.EndRun(name);
}

absl::Status WorkerSession::CheckTraining() const {
  if (training()) return absl::OkStatus();
  return absl::FailedPreconditionError("the session does not train");
}

absl::StatusOr<std::vector<SquaredNorm>> WorkerSession::PrepareStep(
    int64_t step, absl::Span<const int32_t> attempts) {
  RETURN_IF_ERROR(CheckTraining());
  std::unique_lock<std::shared_mutex> lock(step_mutex_);
  if (step != step_ + 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("expected step ", step_ + 1, ", got ", step));
  }
  if (!refused_.ok()) return refused_;
  if (prepared_.has_value()) {
    if (attempts == absl::MakeConstSpan(prepared_->attempts)) {
      return prepared_->norms;
    }
    return absl::FailedPreconditionError(
        absl::StrCat("step ", step, " is prepared with other attempts"));
  }
  Prepared prepared;
  prepared.attempts.assign(attempts.begin(), attempts.end());
  ASSIGN_OR_RETURN(prepared.gradients, gradients_->Take(attempts));
  refused_ = store_.CheckGradients(prepared.gradients);
  if (!refused_.ok()) return refused_;
  prepared.norms = store_.SquaredNorms(prepared.gradients);
  prepared_ = std::move(prepared);
  return prepared_->norms;
}

absl::StatusOr<GradientList> WorkerSession::PreparedGradients(
    int64_t step) const {
  std::shared_lock<std::shared_mutex> lock(step_mutex_);
  if (step == step_ + 1 && prepared_.has_value()) return prepared_->gradients;
  return absl::FailedPreconditionError(
      absl::StrCat("step ", step, " is not prepared"));
}

std::vector<ParameterSpec> WorkerSession::ReplicaParameters() const {
  if (replica_ == nullptr) return {};
  std::vector<ParameterSpec> specs = replica_->store().specs();
  for (ParameterSpec& spec : specs) {
    spec.dims[0] = static_cast<int64_t>(replica_->store().experts().size());
  }
  return specs;
}

absl::Status WorkerSession::ReplicateGradients(int64_t step,
                                               GradientList sums) {
  std::shared_lock<std::shared_mutex> lock(step_mutex_);
  if (replica_ == nullptr) {
    return absl::FailedPreconditionError("the session keeps no replica");
  }
  if (step == step_ && step > 0) return absl::OkStatus();
  if (step != step_ + 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("expected step ", step_ + 1, ", got ", step));
  }
  return replica_->Take(step, std::move(sums));
}

absl::Status WorkerSession::CommitStep(int64_t step, double gradient_scale,
                                       double learning_rate, bool skip) {
  RETURN_IF_ERROR(CheckTraining());
  RETURN_IF_ERROR(CheckFinite(gradient_scale, "gradient_scale"));
  RETURN_IF_ERROR(CheckFinite(learning_rate, "learning_rate"));
  std::unique_lock<std::shared_mutex> lock(step_mutex_);
  if (step == step_ && step > 0) return absl::OkStatus();
  if (step != step_ + 1 || !prepared_.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat("step ", step, " is not prepared; the last one committed ",
                     "is ", step_));
  }
  {
    std::lock_guard<std::mutex> snapshot_lock(snapshot_mutex_);
    if (replica_ != nullptr) {
      RETURN_IF_ERROR(
          replica_->Commit(step, gradient_scale, learning_rate, skip));
    }
    if (!skip) {
      parameters_.clear();  // what is shared would be copied
      store_.Update(prepared_->gradients, gradient_scale, step, learning_rate);
      TakeParameters();
    }
  }
  step_ = step;
  std::map<std::string, OpenRun> left;
  {
    std::lock_guard<std::mutex> runs_lock(runs_mutex_);
    left.swap(runs_);
    early_.clear();
  }
  for (const auto& [name, run] : left) host_.EndRun(name);
  BeginStep();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<WorkerSession::Shard>>
WorkerSession::BeginCheckpoint(ShardTarget target, bool include_replica) const {
  RETURN_IF_ERROR(CheckTraining());
  std::shared_lock<std::shared_mutex> lock(step_mutex_);
  if (target.step != step_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "expected the last step committed, ", step_, ", got ", target.step));
  }
  if (include_replica && replica_ == nullptr) {
    return absl::FailedPreconditionError("the session keeps no replica");
  }
  std::lock_guard<std::mutex> snapshot_lock(snapshot_mutex_);
  std::unique_ptr<Shard> shard(
      new Shard(this, std::move(target), ++last_shard_));
  shard->tensors_ = store_.Snapshot();
  if (include_replica) {
    for (NamedTensor& named : replica_->store().Snapshot()) {
      shard->tensors_.push_back(std::move(named));
    }
  }
  return shard;
}

WorkerSession::Shard::~Shard() {
  std::lock_guard<std::mutex> lock(session_->snapshot_mutex_);
  tensors_.clear();
}

absl::StatusOr<std::vector<TensorEntry>> WorkerSession::Shard::Write(
    const std::function<bool()>& abandoned, FaultPoints* faults) const {
  return WriteShard(
      target_, tensors_,
      [&] {
        return number_ != session_->last_shard_ || (abandoned && abandoned());
      },
      faults);
}

int64_t WorkerSession::step() const {
  std::shared_lock<std::shared_mutex> lock(step_mutex_);
  return step_;
}

TensorMap WorkerSession::Parameters() const {
  std::shared_lock<std::shared_mutex> lock(step_mutex_);
  return store_.tensors();
}

}  // namespace gshard
