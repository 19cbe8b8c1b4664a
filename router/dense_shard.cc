#include "router/dense_shard.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

int64_t BytesOf(const std::vector<ParameterSpec>& specs) {
  int64_t bytes = 0;
  for (const ParameterSpec& spec : specs) {
    bytes += NumElements(spec.dims) * static_cast<int64_t>(sizeof(float));
  }
  return bytes;
}

absl::Status CheckFinite(double value, absl::string_view name) {
  if (std::isfinite(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": expected a finite number, got ", value));
}

absl::Status CheckSpec(const DenseShardSpec& spec) {
  const int64_t size = static_cast<int64_t>(spec.owners.size());
  if (spec.rank < 0 || spec.rank >= size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank: expected one of ", size, " owners, got ", spec.rank));
  }
  if (spec.microbatches_per_step < 1 || spec.step < 0 ||
      spec.skipped_steps < 0 || spec.skipped_steps > spec.step) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected at least one microbatch a step, and steps of which at most "
        "all are left out, got ",
        spec.microbatches_per_step, " microbatches, ", spec.step, " steps, ",
        spec.skipped_steps, " left out"));
  }
  return Annotate(CheckOwners(spec.parameters, spec.owners), "owners");
}

}  // namespace

DenseShard::DenseShard(DenseShardSpec spec, std::vector<ParameterSpec> own,
                       std::unique_ptr<Meeting> meeting)
    : spec_(std::move(spec)),
      meeting_(std::move(meeting)),
      store_(std::move(own), /*experts=*/{}, spec_.optimizer),
      step_(spec_.step) {
  const int64_t all = BytesOf(spec_.parameters);
  const int64_t owners = static_cast<int64_t>(spec_.owners.size());
  const int64_t microbatches =
      (spec_.microbatches_per_step + owners - 1) / owners;
  memory_bytes_ = all * (2 + microbatches) + BytesOf(store_.specs()) +
                  store_.bytes() +
                  2 * static_cast<int64_t>(spec_.max_round_bytes);
}

absl::StatusOr<std::unique_ptr<DenseShard>> DenseShard::Create(
    DenseShardSpec spec, std::unique_ptr<Meeting> meeting) {
  RETURN_IF_ERROR(CheckSpec(spec));
  std::vector<ParameterSpec> own;
  for (const std::string& name : spec.owners[spec.rank]) {
    for (const ParameterSpec& parameter : spec.parameters) {
      if (parameter.name == name) own.push_back(parameter);
    }
  }
  std::unique_ptr<DenseShard> shard(
      new DenseShard(std::move(spec), std::move(own), std::move(meeting)));
  RETURN_IF_ERROR(shard->Load());
  return shard;
}

absl::Status DenseShard::Load() {
  ParameterStore all(spec_.parameters, /*experts=*/{}, /*optimizer=*/nullptr);
  if (spec_.checkpoint_directory.empty()) {
    RETURN_IF_ERROR(store_.Initialize(spec_.initial_seed));
    RETURN_IF_ERROR(all.Initialize(spec_.initial_seed));
  } else {
    ASSIGN_OR_RETURN(const auto checkpoint,
                     CheckpointReader::Open(spec_.checkpoint_directory));
    const int64_t expected = spec_.step - spec_.skipped_steps;
    if (checkpoint->manifest().step != expected) {
      return absl::FailedPreconditionError(absl::StrCat(
          "expected a checkpoint of step ", expected, ", got ",
          checkpoint->manifest().step, " in ", spec_.checkpoint_directory));
    }
    RETURN_IF_ERROR(store_.Load(*checkpoint));
    RETURN_IF_ERROR(all.Load(*checkpoint));
  }
  TensorMap parameters = all.tensors();
  for (const auto& [name, tensor] : store_.tensors()) {
    parameters[name] = tensor;
  }
  parameters_ = std::make_shared<const TensorMap>(std::move(parameters));
  return absl::OkStatus();
}

absl::Status DenseShard::Connect(absl::Span<const std::string> addresses) {
  std::lock_guard<std::mutex> lock(mutex_);
  RETURN_IF_ERROR(broken_);
  if (exchange_ != nullptr) {
    return absl::FailedPreconditionError("the routers are connected");
  }
  const absl::StatusOr<Communicator*> group = meeting_->Join(addresses);
  if (!group.ok()) return Break(group.status());
  exchange_ = std::make_unique<DenseExchange>(spec_.parameters, spec_.owners,
                                              *group, spec_.max_round_bytes);
  return absl::OkStatus();
}

absl::Status DenseShard::Break(const absl::Status& status) {
  broken_ = Annotate(
      status, absl::StrCat("the routers of the session, at step ", step_ + 1));
  meeting_->Abort();
  kept_.clear();
  prepared_.reset();
  return broken_;
}

absl::StatusOr<DenseShard::Parameters> DenseShard::ParametersOf(
    int64_t version) const {
  std::lock_guard<std::mutex> lock(mutex_);
  RETURN_IF_ERROR(broken_);
  if (version == step_) return parameters_;
  return absl::FailedPreconditionError(
      absl::StrCat("expected version ", step_, ", got ", version));
}

absl::Status DenseShard::Keep(int64_t step, int32_t microbatch, int32_t attempt,
                              GradientList gradients) {
  TensorMap by_name;
  for (auto& [name, gradient] : gradients) {
    by_name[name] = std::move(gradient);
  }
  gradients.clear();
  for (const ParameterSpec& spec : spec_.parameters) {
    const auto found = by_name.find(spec.name);
    if (found == by_name.end() ||
        found->second.type() != ElementType::kFloat32 ||
        found->second.dims() != spec.dims) {
      return absl::InvalidArgumentError(absl::StrCat(
          "gradient '", spec.name, "': expected ",
          TypeString(ElementType::kFloat32, spec.dims), ", got ",
          found == by_name.end() ? "none" : found->second.TypeString()));
    }
  }
  std::lock_guard<std::mutex> lock(mutex_);
  RETURN_IF_ERROR(broken_);
  if (microbatch < 0 || microbatch >= spec_.microbatches_per_step) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a microbatch in [0, ",
                     spec_.microbatches_per_step, "), got ", microbatch));
  }
  if (step != step_ + 1 || prepared_.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the session is at step ", step_ + 1,
                     prepared_.has_value() ? ", which is prepared" : "",
                     "; got gradients ", "of step ", step));
  }
  const auto [kept, is_new] = kept_.try_emplace(microbatch);
  if (!is_new && attempt < kept->second.attempt) {
    return absl::FailedPreconditionError(
        absl::StrCat("microbatch ", microbatch, ": attempt ", attempt,
                     " is superseded by attempt ", kept->second.attempt));
  }
  kept->second = {.attempt = attempt, .gradients = std::move(by_name)};
  return absl::OkStatus();
}

absl::Status DenseShard::CheckRuns(absl::Span<const int32_t> attempts,
                                   absl::Span<const int32_t> ran_by) const {
  const size_t count = static_cast<size_t>(spec_.microbatches_per_step);
  if (attempts.size() != count || ran_by.size() != count) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected the attempts and routers of ", count, " microbatches, got ",
        attempts.size(), " and ", ran_by.size()));
  }
  for (size_t m = 0; m < count; ++m) {
    if (ran_by[m] < 0 || ran_by[m] >= static_cast<int>(spec_.owners.size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("ran_by[", m, "]: expected one of ", spec_.owners.size(),
                       " routers, got ", ran_by[m]));
    }
    if (ran_by[m] != spec_.rank) continue;
    const auto kept = kept_.find(static_cast<int32_t>(m));
    if (kept == kept_.end() || kept->second.attempt != attempts[m]) {
      return absl::FailedPreconditionError(absl::StrCat(
          "microbatch ", m, ": expected attempt ", attempts[m], ", have ",
          kept == kept_.end()
              ? "none"
              : absl::StrCat("attempt ", kept->second.attempt)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<DenseShard::Prepared> DenseShard::SumStep(
    absl::Span<const int32_t> attempts, absl::Span<const int32_t> ran_by) {
  if (exchange_ == nullptr) {
    return absl::FailedPreconditionError("the routers are not connected");
  }
  RETURN_IF_ERROR(CheckRuns(attempts, ran_by));
  Prepared prepared;
  prepared.attempts.assign(attempts.begin(), attempts.end());
  prepared.ran_by.assign(ran_by.begin(), ran_by.end());
  std::map<int32_t, TensorMap> gradients;
  for (const auto& [microbatch, kept] : kept_) {
    gradients[microbatch] = kept.gradients;
  }
  const std::vector<int> ran(ran_by.begin(), ran_by.end());
  ASSIGN_OR_RETURN(prepared.gradients, exchange_->SumGradients(ran, gradients));
  prepared.norms = store_.SquaredNorms(prepared.gradients);
  return prepared;
}

absl::StatusOr<std::vector<SquaredNorm>> DenseShard::PrepareStep(
    int64_t step, absl::Span<const int32_t> attempts,
    absl::Span<const int32_t> ran_by) {
  std::lock_guard<std::mutex> lock(mutex_);
  RETURN_IF_ERROR(broken_);
  if (step != step_ + 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("expected step ", step_ + 1, ", got ", step));
  }
  if (prepared_.has_value()) {
    if (attempts == absl::MakeConstSpan(prepared_->attempts) &&
        ran_by == absl::MakeConstSpan(prepared_->ran_by)) {
      return prepared_->norms;
    }
    return absl::FailedPreconditionError(
        absl::StrCat("step ", step, " is prepared with other attempts"));
  }
  absl::StatusOr<Prepared> prepared = SumStep(attempts, ran_by);
  if (!prepared.ok()) return Break(prepared.status());
  prepared_ = *std::move(prepared);
  kept_.clear();
  return prepared_->norms;
}

absl::Status DenseShard::CommitStep(int64_t step, double gradient_scale,
                                    double learning_rate, bool skip) {
  RETURN_IF_ERROR(CheckFinite(gradient_scale, "gradient_scale"));
  RETURN_IF_ERROR(CheckFinite(learning_rate, "learning_rate"));
  std::lock_guard<std::mutex> lock(mutex_);
  RETURN_IF_ERROR(broken_);
  if (step == step_ && step > 0) return absl::OkStatus();
  if (step != step_ + 1 || !prepared_.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat("step ", step, " is not prepared; the last one committed ",
                     "is ", step_));
  }
  if (!skip) {
    store_.Update(prepared_->gradients, gradient_scale, step, learning_rate);
    prepared_->gradients.clear();
    absl::StatusOr<TensorMap> all =
        exchange_->GatherParameters(store_.tensors());
    if (!all.ok()) return Break(all.status());
    parameters_ = std::make_shared<const TensorMap>(*std::move(all));
  }
  prepared_.reset();
  step_ = step;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TensorEntry>> DenseShard::WriteCheckpoint(
    const std::string& root, int64_t step, const std::string& shard) const {
  std::lock_guard<std::mutex> lock(mutex_);
  RETURN_IF_ERROR(broken_);
  if (step != step_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "expected the last step committed, ", step_, ", got ", step));
  }
  ASSIGN_OR_RETURN(
      const auto writer,
      CheckpointWriter::Create(root, step, shard, store_.TensorSpecs()));
  RETURN_IF_ERROR(store_.Save(*writer));
  return writer->Finish();
}

}  // namespace gshard
