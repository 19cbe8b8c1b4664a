// The steps of a JobRunner, from the first microbatch to the checkpoint.

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/coordinator/job_runner.h"

namespace gshard {
namespace {

// Whether running the microbatch again may help.
bool IsPassing(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsResourceExhausted(status) || absl::IsAborted(status) ||
         absl::IsCancelled(status);
}

}  // namespace

void JobRunner::BeginStep() {
  const int32_t count = static_cast<int32_t>(job_.microbatches_per_step);
  step_ = dense_->step() + 1;
  phase_ = Phase::kMicrobatches;
  microbatches_ = std::make_unique<MicrobatchSchedule>(count);
  statistics_.assign(count, StepStatistics());
  result_ = {};
  dense_->BeginStep(count);
  for (const auto& [router, state] : routers_) {
    if (state == RouterState::kReady) microbatches_->AddRouter(router);
  }
  Dispatch();
}

void JobRunner::Dispatch() {
  for (const Assignment& assignment : microbatches_->Assign()) {
    if (assignment.attempt > 0) reporter_->OnRetry();
    dense_->Expect(assignment.microbatch, assignment.attempt);
    v1::Command command;
    v1::AssignMicrobatch* const assign = command.mutable_assign_microbatch();
    assign->set_session(session_);
    assign->set_step(step_);
    assign->set_microbatch(assignment.microbatch);
    assign->set_attempt(assignment.attempt);
    assign->set_parameter_version(step_ - 1);
    assign->set_timeout_ms(
        absl::ToInt64Milliseconds(settings_.microbatch_timeout));
    env_.members->Send(
        assignment.router, std::move(command),
        [this, assignment,
         step = step_](absl::StatusOr<v1::CommandReply> reply) {
          env_.queue->Post([this, assignment, step, reply = std::move(reply)] {
            if (step == step_) OnMicrobatch(assignment, reply);
          });
        });
  }
}

void JobRunner::OnMicrobatch(const Assignment& assignment,
                             const absl::StatusOr<v1::CommandReply>& reply) {
  if (phase_ != Phase::kMicrobatches) return;
  if (!microbatches_->IsCurrent(assignment)) return;
  if (!reply.ok()) return OnMicrobatchFailed(assignment, reply.status());
  Do(OnMicrobatchDone(assignment, *reply));
}

absl::Status JobRunner::OnMicrobatchDone(const Assignment& assignment,
                                         const v1::CommandReply& reply) {
  const std::string where =
      absl::StrCat("router '", assignment.router.name, "', step ", step_,
                   ", microbatch ", assignment.microbatch);
  absl::StatusOr<StepStatistics> statistics =
      StatisticsFromProto(reply.microbatch_done().stats(),
                          MoeLayerNames(job_.model).size(), job_.model.experts);
  RETURN_IF_ERROR(Annotate(statistics.status(), where));
  if (!dense_->HasGradients(assignment.microbatch)) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": a reply came, but no gradients"));
  }
  statistics_[assignment.microbatch] = *std::move(statistics);
  microbatches_->Finish(assignment);
  if (microbatches_->complete()) {
    PrepareStep();
  } else {
    Dispatch();
  }
  return absl::OkStatus();
}

void JobRunner::OnMicrobatchFailed(const Assignment& assignment,
                                   const absl::Status& status) {
  const absl::Status described = Annotate(
      status,
      absl::StrCat("step ", step_, ", microbatch ", assignment.microbatch));
  LogWarning("microbatch failed", {{"job", job_.name}, {"status", described}});
  // A router or worker that is gone shows here first.
  ReconcileMembers();
  if (phase_ != Phase::kMicrobatches || !microbatches_->IsCurrent(assignment)) {
    return;
  }
  if (!IsPassing(status)) return Do(described);
  const int32_t attempts = microbatches_->Fail(assignment);
  if (attempts >= settings_.max_attempts) {
    return Do(Annotate(described,
                       absl::StrCat("gave up after ", attempts, " attempts")));
  }
  const absl::Duration delay =
      settings_.retry_delay * static_cast<int64_t>(1 << (attempts - 1));
  env_.queue->PostAfter(delay,
                        [this, step = step_, index = assignment.microbatch] {
                          if (phase_ != Phase::kMicrobatches || step != step_)
                            return;
                          microbatches_->Release(index);
                          Dispatch();
                        });
  Dispatch();
}

void JobRunner::PrepareStep() {
  phase_ = Phase::kPreparing;
  const std::vector<int32_t> attempts = microbatches_->attempts();
  FanOut(*env_.members, *env_.queue,
         ForWorkers([&](size_t, v1::Command* command) {
           v1::PrepareStep* const prepare = command->mutable_prepare_step();
           prepare->set_session(session_);
           prepare->set_step(step_);
           prepare->mutable_attempts()->Add(attempts.begin(), attempts.end());
         }),
         OnQueue([this](const std::vector<v1::CommandReply>& replies) {
           return OnPrepared(replies);
         }));
  // Meanwhile, the dense side.
  gradients_ = dense_->TakeGradients();
  dense_norms_ = dense_->SquaredNorms(gradients_);
  for (const StepStatistics& statistics : statistics_) {
    // All have the model's layers and experts.
    CHECK(result_.statistics.Merge(statistics).ok());
  }
}

absl::Status JobRunner::AddWorkerNorms(
    const std::vector<v1::CommandReply>& replies,
    std::vector<SquaredNorm>* norms) const {
  const std::vector<ParameterSpec> specs =
      ParametersOf(job_.model, /*per_expert=*/true);
  for (size_t w = 0; w < replies.size(); ++w) {
    std::map<std::string, double> values;
    for (const v1::GradientNorm& norm : replies[w].step_prepared().norms()) {
      values.emplace(norm.tensor(), norm.squared_norm());
    }
    size_t found = 0;
    for (const ParameterSpec& spec : specs) {
      for (const int32_t e : plan_.placement().workers(w).experts()) {
        const auto value = values.find(ExpertTensorName(spec.name, e));
        if (value == values.end()) continue;
        norms->push_back({value->first, value->second});
        ++found;
      }
    }
    const size_t expected =
        specs.size() * plan_.placement().workers(w).experts_size();
    const size_t got = replies[w].step_prepared().norms_size();
    if (found != expected || got != expected) {
      return absl::InvalidArgumentError(absl::StrCat(
          "expert worker '", plan_.workers[w].name, "', step ", step_,
          ": expected norms of ", expected, " tensors, got ", got, " of which ",
          found, " are its own"));
    }
  }
  return absl::OkStatus();
}

absl::Status JobRunner::OnPrepared(
    const std::vector<v1::CommandReply>& replies) {
  std::vector<SquaredNorm> norms = std::move(dense_norms_);
  RETURN_IF_ERROR(AddWorkerNorms(replies, &norms));
  const StepStatistics& statistics = result_.statistics;
  const std::string where = absl::StrCat("step ", step_);
  if (!std::isfinite(statistics.loss_sum)) {
    return absl::FailedPreconditionError(
        absl::StrCat(where, ": the loss is not finite (", statistics.loss_sum,
                     "); lower the learning rate, or resume from an earlier "
                     "checkpoint"));
  }
  const absl::StatusOr<StepScale> scale =
      ScaleStep(TotalSquaredNorm(std::move(norms)), statistics.target_tokens,
                job_.clip_norm);
  RETURN_IF_ERROR(Annotate(
      scale.status(), absl::StrCat(where, " (loss ", statistics.loss(), ")")));
  result_.gradient_norm = scale->gradient_norm;
  result_.learning_rate = schedule_.LearningRate(step_);
  phase_ = Phase::kCommitting;
  FanOut(*env_.members, *env_.queue,
         ForWorkers([&](size_t, v1::Command* command) {
           v1::CommitStep* const commit = command->mutable_commit_step();
           commit->set_session(session_);
           commit->set_step(step_);
           commit->set_gradient_scale(scale->gradient_scale);
           commit->set_learning_rate(result_.learning_rate);
         }),
         OnQueue([this](const std::vector<v1::CommandReply>&) {
           return OnCommitted();
         }));
  dense_->Update(gradients_, scale->gradient_scale, result_.learning_rate);
  gradients_.clear();
  return absl::OkStatus();
}

absl::Status JobRunner::OnCommitted() {
  const absl::Time now = env_.clock();
  const bool out_of_time =
      job_.time_limit_seconds > 0 &&
      now - first_step_time_ >= absl::Seconds(job_.time_limit_seconds);
  last_step_ = step_ >= job_.steps || out_of_time || stop_;
  reporter_->OnStep(step_, result_, now, last_step_);
  const bool due = job_.checkpoint.every_steps > 0 &&
                   step_ % job_.checkpoint.every_steps == 0;
  if (last_step_ || due) return WriteCheckpoint();
  BeginStep();
  return absl::OkStatus();
}

absl::Status JobRunner::WriteCheckpoint() {
  phase_ = Phase::kCheckpointing;
  FanOut(*env_.members, *env_.queue,
         ForWorkers([&](size_t w, v1::Command* command) {
           v1::WriteCheckpoint* const write =
               command->mutable_write_checkpoint();
           write->set_session(session_);
           write->set_step(step_);
           write->set_root(job_.checkpoint.directory);
           write->set_shard(absl::StrCat("worker-", w));
         }),
         OnQueue([this](const std::vector<v1::CommandReply>& replies) {
           return Annotate(OnCheckpointWritten(replies),
                           absl::StrCat("checkpoint of step ", step_));
         }));
  const auto write_dense = [this]() -> absl::Status {
    ASSIGN_OR_RETURN(const auto writer,
                     CheckpointWriter::Create(job_.checkpoint.directory, step_,
                                              "dense", dense_->TensorSpecs()));
    RETURN_IF_ERROR(dense_->Save(*writer));
    ASSIGN_OR_RETURN(dense_entries_, writer->Finish());
    return absl::OkStatus();
  };
  return Annotate(write_dense(), absl::StrCat("checkpoint of step ", step_));
}

absl::Status JobRunner::OnCheckpointWritten(
    const std::vector<v1::CommandReply>& replies) {
  std::vector<TensorEntry> entries = std::move(dense_entries_);
  for (size_t w = 0; w < replies.size(); ++w) {
    const auto more = EntriesFromProto(replies[w].checkpoint_written());
    RETURN_IF_ERROR(
        Annotate(more.status(),
                 absl::StrCat("expert worker '", plan_.workers[w].name, "'")));
    entries.insert(entries.end(), more->begin(), more->end());
  }
  ASSIGN_OR_RETURN(
      checkpoint_path_,
      CommitJobCheckpoint(job_, tokenizers_, step_, std::move(entries)));
  reporter_->OnCheckpoint(step_, checkpoint_path_, env_.clock());
  OnCheckpointDone();
  return absl::OkStatus();
}

void JobRunner::OnCheckpointDone() {
  if (!last_step_) {
    if (!stop_) return BeginStep();
    last_step_ = true;
  }
  if (stop_ && step_ < job_.steps) {
    return Finish(v1::JOB_STATE_CANCELLED,
                  absl::UnavailableError(absl::StrCat(
                      "the coordinator is shutting down; submit the job again "
                      "with resume to go on from ",
                      checkpoint_path_)));
  }
  if (job_.serve_as.empty() || stop_) return Finish(v1::JOB_STATE_SUCCEEDED);
  Serve();
}

}  // namespace gshard
