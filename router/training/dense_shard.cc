#include "router/training/dense_shard.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

int64_t BytesOf(const std::vector<NamedShape>& shapes) {
  int64_t bytes = 0;
  for (const NamedShape& shape : shapes) {
    bytes += NumElements(shape.dims) * static_cast<int64_t>(sizeof(float));
  }
  return bytes;
}

absl::Status CheckSpec(const DenseShardSpec& spec) {
  const int64_t size = static_cast<int64_t>(spec.owners.size());
  if (spec.rank < 0 || spec.rank >= size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank: expected one of ", size, " owners, got ", spec.rank));
  }
  if (spec.microbatches_per_step < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("microbatches_per_step: expected at least 1, got ",
                     spec.microbatches_per_step));
  }
  RETURN_IF_ERROR(CheckSteps(spec.source));
  return Annotate(CheckOwners(spec.parameters, spec.owners), "owners");
}

}  // namespace

DenseShard::DenseShard(DenseShardSpec spec, ParameterStore own,
                       TensorMap others, std::unique_ptr<Rendezvous> rendezvous)
    : spec_(std::move(spec)),
      memory_bytes_(own.bytes()),
      rendezvous_(std::move(rendezvous)),
      own_(std::move(own), spec_.source.step) {
  for (const ParameterSpec& parameter : spec_.parameters) {
    shapes_.push_back({parameter.name, parameter.dims});
  }
  const int64_t owners = static_cast<int64_t>(spec_.owners.size());
  const int64_t microbatches =
      (spec_.microbatches_per_step + owners - 1) / owners;
  // Beside the state of what is owned, and its sums, which take as much as its
  // parameters. Most is used while gradients are summed, or while an update is
  // received, when those of microbatches have gone.
  memory_bytes_ += BytesOf(shapes_) * std::max<int64_t>(2, 1 + microbatches) +
                   2 * std::min(BytesOf(shapes_),
                                static_cast<int64_t>(spec_.max_round_bytes));
  own_.BeginStep(static_cast<int32_t>(spec_.microbatches_per_step),
                 /*window=*/1);
  others.merge(own_.tensors());
  parameters_ = std::make_shared<const TensorMap>(std::move(others));
}

absl::StatusOr<std::unique_ptr<DenseShard>> DenseShard::Create(
    DenseShardSpec spec, std::unique_ptr<Rendezvous> rendezvous) {
  RETURN_IF_ERROR(CheckSpec(spec));
  const std::vector<std::string>& owned = spec.owners[spec.rank];
  std::vector<ParameterSpec> own, others;
  for (const ParameterSpec& parameter : spec.parameters) {
    const bool is_own =
        std::find(owned.begin(), owned.end(), parameter.name) != owned.end();
    (is_own ? own : others).push_back(parameter);
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointReader> checkpoint,
                   OpenToTrain(spec.source));
  ParameterStore store(std::move(own), /*experts=*/{}, spec.optimizer,
                       spec.device);
  RETURN_IF_ERROR(store.Load(checkpoint.get(), spec.source.initial_seed,
                             spec.source.stop, spec.source.weights_only));
  ASSIGN_OR_RETURN(TensorMap copies,
                   ReadParameters(others, /*experts=*/{}, checkpoint.get(),
                                  spec.source.initial_seed, /*forms=*/{},
                                  spec.device, spec.source.stop));
  return std::unique_ptr<DenseShard>(
      new DenseShard(std::move(spec), std::move(store), std::move(copies),
                     std::move(rendezvous)));
}

absl::Status DenseShard::Connect(absl::Span<const std::string> addresses) {
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(broken_);
  if (exchange_ != nullptr) {
    return absl::FailedPreconditionError("the routers are connected");
  }
  const absl::StatusOr<Communicator*> group = rendezvous_->Join(addresses);
  if (!group.ok()) return Break(own_.step() + 1, group.status());
  exchange_ =
      std::make_unique<DenseExchange>(spec_.parameters, spec_.owners, *group,
                                      spec_.max_round_bytes, spec_.device);
  return absl::OkStatus();
}

absl::Status DenseShard::Break(int64_t step, const absl::Status& status) {
  broken_ = Annotate(
      status, absl::StrCat("the routers of the session, at step ", step));
  rendezvous_->Abort();
  kept_.clear();
  return broken_;
}

absl::StatusOr<DenseShard::Parameters> DenseShard::ParametersOf(
    int64_t version) const {
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(broken_);
  if (version == own_.step()) return parameters_;
  return absl::FailedPreconditionError(
      absl::StrCat("expected version ", own_.step(), ", got ", version));
}

absl::Status DenseShard::Keep(int64_t step, int32_t microbatch, int32_t attempt,
                              GradientList gradients) {
  ASSIGN_OR_RETURN(std::vector<Tensor> values,
                   InOrder(shapes_, std::move(gradients)));
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(broken_);
  RETURN_IF_ERROR(own_.Begin(step, microbatch, attempt));
  TensorMap by_name;
  for (size_t i = 0; i < values.size(); ++i) {
    Tensor& value = by_name[shapes_[i].name] = std::move(values[i]);
    if (spec_.device == nullptr || !value.on_host()) continue;
    ASSIGN_OR_RETURN(value, CopyToDevice(*spec_.device, value));
  }
  kept_[microbatch] = {.attempt = attempt, .gradients = std::move(by_name)};
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

absl::StatusOr<GradientList> DenseShard::SumStep(
    absl::Span<const int32_t> attempts, absl::Span<const int32_t> ran_by) {
  if (exchange_ == nullptr) {
    return absl::FailedPreconditionError("the routers are not connected");
  }
  RETURN_IF_ERROR(CheckRuns(attempts, ran_by));
  std::map<int32_t, TensorMap> gradients;
  for (const auto& [microbatch, kept] : kept_) {
    gradients[microbatch] = kept.gradients;
  }
  const std::vector<int> ran(ran_by.begin(), ran_by.end());
  return exchange_->SumGradients(ran, gradients);
}

absl::StatusOr<std::vector<SquaredNorm>> DenseShard::PrepareStep(
    int64_t step, absl::Span<const int32_t> attempts,
    absl::Span<const int32_t> ran_by) {
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(broken_);
  std::vector<int32_t> of(attempts.begin(), attempts.end());
  of.insert(of.end(), ran_by.begin(), ran_by.end());
  absl::StatusOr<std::vector<SquaredNorm>> norms = own_.PrepareSums(
      step, of,
      [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(
          mutex_) -> absl::StatusOr<GradientList> {
        absl::StatusOr<GradientList> sums = SumStep(attempts, ran_by);
        if (!sums.ok()) return Break(step, sums.status());
        kept_.clear();
        return sums;
      });
  RETURN_IF_ERROR(CheckDevice(step));
  return norms;
}

absl::Status DenseShard::CheckDevice(int64_t step) {
  if (!own_.status().ok() && broken_.ok()) return Break(step, own_.status());
  return absl::OkStatus();
}

absl::Status DenseShard::CommitStep(int64_t step, double gradient_scale,
                                    double learning_rate, bool skip) {
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(broken_);
  const int64_t committed = own_.step();
  const absl::Status updated =
      own_.Commit(step, gradient_scale, learning_rate, skip);
  RETURN_IF_ERROR(CheckDevice(step));
  RETURN_IF_ERROR(updated);
  if (step == committed) return absl::OkStatus();
  if (skip) return absl::OkStatus();
  absl::StatusOr<TensorMap> all = exchange_->GatherParameters(own_.tensors());
  if (!all.ok()) return Break(step, all.status());
  parameters_ = std::make_shared<const TensorMap>(*std::move(all));
  return absl::OkStatus();
}

absl::StatusOr<ParameterShard::Snapshot> DenseShard::TakeSnapshot(
    int64_t step) const {
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(broken_);
  if (step != own_.step()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "expected the last step committed, ", own_.step(), ", got ", step));
  }
  return own_.TakeSnapshot();
}

absl::StatusOr<std::vector<TensorEntry>> DenseShard::WriteCheckpoint(
    const ShardTarget& target, const ParameterShard::Snapshot& snapshot,
    FaultPoints* faults) const {
  return WriteShard(
      target, *snapshot, [this] { return aborted_.load(); }, faults);
}

}  // namespace gshard
