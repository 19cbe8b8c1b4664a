#include "services/train/parameter_shard.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

absl::Status CheckFinite(double value, absl::string_view name) {
  if (std::isfinite(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": expected a finite number, got ", value));
}

absl::Status CheckNumbers(double gradient_scale, double learning_rate) {
  RETURN_IF_ERROR(CheckFinite(gradient_scale, "gradient_scale"));
  return CheckFinite(learning_rate, "learning_rate");
}

}  // namespace

ParameterShard::ParameterShard(ParameterStore store, int64_t step)
    : shapes_(store.shapes()),
      device_(store.device()),
      store_(std::move(store)),
      step_(step) {}

void ParameterShard::BeginStep(int32_t microbatches, int32_t window) {
  CHECK(microbatches >= 1 && window >= 1);
  MutexLock lock(mutex_);
  window_ = window;
  microbatches_.resize(microbatches);
  ResetSum();
}

void ParameterShard::ResetSum() {
  prepared_.reset();
  if (microbatches_.empty()) return;
  microbatches_.assign(microbatches_.size(), Microbatch());
  sum_ = std::make_shared<OrderedSum>(microbatches_.size(),
                                      /*max_early=*/window_ - 1, device_);
}

absl::Status ParameterShard::status() const {
  MutexLock lock(mutex_);
  return CheckDevice();
}

absl::Status ParameterShard::CheckDevice() const {
  RETURN_IF_ERROR(failed_);
  return sum_ == nullptr ? absl::OkStatus() : sum_->status();
}

absl::Status ParameterShard::CheckMicrobatch(int64_t step, int32_t microbatch,
                                             int32_t attempt) const {
  if (step != step_ + 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("expected gradients of step ", step_ + 1, ", got ", step));
  }
  if (prepared_.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat("step ", step, " is prepared, and takes no gradients"));
  }
  const auto count = static_cast<int32_t>(microbatches_.size());
  if (microbatch < 0 || microbatch >= count || attempt < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("microbatch: expected 0 to ", count - 1,
                     " and an attempt of at least 0, got microbatch ",
                     microbatch, ", attempt ", attempt));
  }
  if (attempt >= microbatches_[microbatch].attempt) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("microbatch ", microbatch, ": expected attempt ",
                   microbatches_[microbatch].attempt, ", got ", attempt,
                   ": it was handed on"));
}

absl::Status ParameterShard::CheckCurrent(int64_t step, int32_t microbatch,
                                          int32_t attempt) const {
  RETURN_IF_ERROR(CheckMicrobatch(step, microbatch, attempt));
  const int32_t current = microbatches_[microbatch].attempt;
  if (attempt == current) return absl::OkStatus();
  return absl::FailedPreconditionError(
      current < 0
          ? absl::StrCat("microbatch ", microbatch, " has not been handed out")
          : absl::StrCat("microbatch ", microbatch, ": expected attempt ",
                         current, ", got ", attempt));
}

absl::Status ParameterShard::Begin(int64_t step, int32_t microbatch,
                                   int32_t attempt) {
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(CheckMicrobatch(step, microbatch, attempt));
  Microbatch& known = microbatches_[microbatch];
  if (attempt > known.attempt) known = {.attempt = attempt, .added = false};
  return absl::OkStatus();
}

absl::Status ParameterShard::CheckAdd(int64_t step, int32_t microbatch,
                                      int32_t attempt) const {
  MutexLock lock(mutex_);
  return CheckCurrent(step, microbatch, attempt);
}

absl::Status ParameterShard::Add(int64_t step, int32_t microbatch,
                                 int32_t attempt, GradientList gradients) {
  ASSIGN_OR_RETURN(std::vector<Tensor> values,
                   InOrder(shapes(), std::move(gradients)));
  std::shared_ptr<OrderedSum> sum;
  {
    MutexLock lock(mutex_);
    RETURN_IF_ERROR(CheckCurrent(step, microbatch, attempt));
    sum = sum_;
  }
  // Without the lock, so that other threads can read the parameters meanwhile.
  const absl::Status added = sum->Add(microbatch, std::move(values));
  if (!added.ok() && !absl::IsAlreadyExists(added)) return added;
  MutexLock lock(mutex_);
  if (sum != sum_) return absl::OkStatus();  // the step is over
  Microbatch& known = microbatches_[microbatch];
  if (known.attempt == attempt) known.added = true;
  return absl::OkStatus();
}

bool ParameterShard::Has(int32_t microbatch) const {
  MutexLock lock(mutex_);
  return microbatches_[microbatch].added;
}

int64_t ParameterShard::next() const {
  MutexLock lock(mutex_);
  return sum_->next();
}

absl::Status ParameterShard::CheckAttempts(
    absl::Span<const int32_t> attempts) const {
  if (attempts.size() != microbatches_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected the attempts of ", microbatches_.size(),
                     " microbatches, got ", attempts.size()));
  }
  for (size_t i = 0; i < attempts.size(); ++i) {
    const Microbatch& known = microbatches_[i];
    if (known.attempt != attempts[i] || !known.added) {
      return absl::FailedPreconditionError(absl::StrCat(
          "microbatch ", i, ": expected attempt ", attempts[i], ", have ",
          known.added ? "" : "an incomplete ", "attempt ", known.attempt));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<SquaredNorm>> ParameterShard::Prepare(
    int64_t step, absl::Span<const int32_t> attempts) {
  return PrepareSums(step, attempts,
                     [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                         mutex_) -> absl::StatusOr<GradientList> {
                       RETURN_IF_ERROR(CheckDevice());
                       RETURN_IF_ERROR(CheckAttempts(attempts));
                       std::vector<Tensor> values = sum_->Take();
                       GradientList sums;
                       for (size_t i = 0; i < values.size(); ++i) {
                         sums.emplace_back(shapes()[i].name,
                                           std::move(values[i]));
                       }
                       return sums;
                     });
}

absl::StatusOr<std::vector<SquaredNorm>> ParameterShard::PrepareSums(
    int64_t step, absl::Span<const int32_t> of, const MakeSums& make) {
  MutexLock lock(mutex_);
  if (step != step_ + 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("expected step ", step_ + 1, ", got ", step));
  }
  RETURN_IF_ERROR(failed_);
  if (prepared_.has_value()) {
    if (of == absl::MakeConstSpan(prepared_->of)) return prepared_->norms;
    return absl::FailedPreconditionError(
        absl::StrCat("step ", step, " is prepared with other attempts"));
  }
  Prepared prepared{.of = {of.begin(), of.end()}, .sums = {}, .norms = {}};
  ASSIGN_OR_RETURN(prepared.sums, make());
  RETURN_IF_ERROR(InOrder(shapes(), prepared.sums).status());
  for (auto& [name, sum] : prepared.sums) {
    if (device_ == nullptr || !sum.on_host()) continue;
    ASSIGN_OR_RETURN(sum, CopyToDevice(*device_, sum));
  }
  auto norms = store_.SquaredNorms(prepared.sums);
  if (!norms.ok()) return failed_ = norms.status();
  prepared.norms = *std::move(norms);
  prepared_ = std::move(prepared);
  return prepared_->norms;
}

absl::StatusOr<GradientList> ParameterShard::PreparedSums(int64_t step) const {
  MutexLock lock(mutex_);
  if (step != step_ + 1 || !prepared_.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat("step ", step, " is not prepared"));
  }
  GradientList sums = prepared_->sums;
  for (auto& [name, sum] : sums) {
    if (device_ == nullptr) continue;
    ASSIGN_OR_RETURN(sum, CopyToHost(*device_, sum));
  }
  return sums;
}

absl::Status ParameterShard::CheckPrepared(int64_t step) const {
  RETURN_IF_ERROR(CheckDevice());
  const bool repeated = step == step_ && step > 0;
  if (repeated || (step == step_ + 1 && prepared_.has_value())) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("step ", step, " is not prepared; the last one committed ",
                   "is ", step_));
}

absl::Status ParameterShard::CheckCommit(int64_t step, double gradient_scale,
                                         double learning_rate) const {
  RETURN_IF_ERROR(CheckNumbers(gradient_scale, learning_rate));
  MutexLock lock(mutex_);
  return CheckPrepared(step);
}

absl::Status ParameterShard::Commit(int64_t step, double gradient_scale,
                                    double learning_rate, bool skip) {
  RETURN_IF_ERROR(CheckNumbers(gradient_scale, learning_rate));
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(CheckPrepared(step));
  if (step == step_) return absl::OkStatus();
  if (!skip) {
    failed_ =
        store_.Update(prepared_->sums, gradient_scale, step, learning_rate);
    RETURN_IF_ERROR(failed_);
  }
  step_ = step;
  ResetSum();
  return absl::OkStatus();
}

int64_t ParameterShard::step() const {
  MutexLock lock(mutex_);
  return step_;
}

TensorMap ParameterShard::tensors() const {
  MutexLock lock(mutex_);
  return store_.tensors();
}

absl::StatusOr<TensorMap> ParameterShard::TensorsOf(int64_t version) const {
  MutexLock lock(mutex_);
  if (version == step_) return store_.tensors();
  return absl::FailedPreconditionError(
      absl::StrCat("expected version ", step_, ", got ", version));
}

absl::StatusOr<ParameterShard::Snapshot> ParameterShard::TakeSnapshot() const {
  Snapshot snapshot;
  {
    MutexLock lock(mutex_);
    RETURN_IF_ERROR(CheckDevice());
    snapshot = Snapshot(new std::vector<NamedTensor>(store_.Snapshot()),
                        [this](const std::vector<NamedTensor>* tensors) {
                          MutexLock let_go(mutex_);
                          delete tensors;
                        });
  }
  if (device_ == nullptr) return snapshot;
  // The device has no room for a second copy while they are written.
  auto copies = std::make_shared<std::vector<NamedTensor>>();
  for (const NamedTensor& named : *snapshot) {
    ASSIGN_OR_RETURN(Tensor copy, CopyToHost(*device_, named.tensor));
    copies->push_back({named.name, std::move(copy)});
  }
  return copies;
}

}  // namespace gshard
