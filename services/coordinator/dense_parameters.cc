#include "services/coordinator/dense_parameters.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/status_macros.h"

namespace gshard {

DenseParameters::DenseParameters(std::string session,
                                 std::unique_ptr<ParameterStore> store,
                                 int64_t step, TaskQueue* sums)
    : session_(std::move(session)),
      sums_(sums),
      store_(std::move(store)),
      step_(step) {
  for (const ParameterSpec& spec : store_->specs()) {
    expected_[spec.name] = {ElementType::kFloat32, spec.dims};
  }
}

absl::StatusOr<NamedTensors> DenseParameters::Pull(int64_t version) const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (version != step_) {
    return absl::FailedPreconditionError(
        absl::StrCat("session '", session_, "': expected version ", step_,
                     ", got ", version));
  }
  NamedTensors tensors;
  for (const auto& [name, tensor] : store_->tensors()) tensors[name] = tensor;
  return tensors;
}

absl::Status DenseParameters::CheckPushLocked(int64_t step, int32_t microbatch,
                                              int32_t attempt) const {
  if (sum_ == nullptr || step != step_ + 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("session '", session_, "': expected gradients of step ",
                     step_ + 1, ", got ", step));
  }
  if (microbatch < 0 || microbatch >= static_cast<int32_t>(attempts_.size())) {
    return absl::InvalidArgumentError(absl::StrCat("microbatch: expected 0 to ",
                                                   attempts_.size() - 1,
                                                   ", got ", microbatch));
  }
  if (attempts_[microbatch] < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("microbatch ", microbatch, " has not been handed out"));
  }
  if (attempt != attempts_[microbatch]) {
    return absl::FailedPreconditionError(absl::StrCat(
        "microbatch ", microbatch, ": expected attempt ", attempts_[microbatch],
        ", got ", attempt, ": it was handed on"));
  }
  return absl::OkStatus();
}

absl::Status DenseParameters::CheckPush(int64_t step, int32_t microbatch,
                                        int32_t attempt) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return CheckPushLocked(step, microbatch, attempt);
}

absl::StatusOr<std::vector<Tensor>> DenseParameters::InOrder(
    NamedTensors gradients) const {
  if (gradients.size() != expected_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected ", expected_.size(), " gradients, got ", gradients.size()));
  }
  // In the order of the parameters, as the single-process reference sums them.
  std::vector<Tensor> values;
  for (const ParameterSpec& spec : store_->specs()) {
    const auto found = gradients.find(spec.name);
    if (found == gradients.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("gradient '", spec.name, "' is missing"));
    }
    if (found->second.type() != ElementType::kFloat32 ||
        found->second.dims() != spec.dims) {
      return absl::InvalidArgumentError(
          absl::StrCat("gradient '", spec.name, "': expected ",
                       TypeString(ElementType::kFloat32, spec.dims), ", got ",
                       found->second.TypeString()));
    }
    values.push_back(std::move(found->second));
  }
  return values;
}

void DenseParameters::Push(int64_t step, int32_t microbatch, int32_t attempt,
                           NamedTensors gradients,
                           std::function<void(const absl::Status&)> done) {
  auto values = InOrder(std::move(gradients));
  if (!values.ok()) return done(values.status());
  auto kept = std::make_shared<std::vector<Tensor>>(*std::move(values));
  sums_->Post([=, this, done = std::move(done)] {
    done(Add(step, microbatch, attempt, std::move(*kept)));
  });
}

absl::Status DenseParameters::Add(int64_t step, int32_t microbatch,
                                  int32_t attempt, std::vector<Tensor> values) {
  std::shared_ptr<OrderedSum> sum;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    RETURN_IF_ERROR(CheckPushLocked(step, microbatch, attempt));
    if (pushed_[microbatch]) return absl::OkStatus();
    sum = sum_;
  }
  RETURN_IF_ERROR(sum->Add(microbatch, std::move(values)));
  std::lock_guard<std::mutex> lock(mutex_);
  if (sum == sum_) pushed_[microbatch] = true;
  return absl::OkStatus();
}

void DenseParameters::BeginStep(int32_t count, int32_t window) {
  std::lock_guard<std::mutex> lock(mutex_);
  sum_ = std::make_shared<OrderedSum>(count, /*max_pending=*/window - 1);
  attempts_.assign(count, -1);
  pushed_.assign(count, false);
}

void DenseParameters::Expect(int32_t microbatch, int32_t attempt) {
  std::lock_guard<std::mutex> lock(mutex_);
  attempts_[microbatch] = attempt;
}

bool DenseParameters::HasGradients(int32_t microbatch) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return pushed_[microbatch];
}

GradientList DenseParameters::TakeGradients() {
  std::shared_ptr<OrderedSum> sum;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    sum.swap(sum_);
  }
  CHECK(sum != nullptr && sum->complete());
  std::vector<Tensor> values = sum->Take();
  GradientList gradients;
  const std::vector<ParameterSpec>& specs = store_->specs();
  for (size_t i = 0; i < specs.size(); ++i) {
    gradients.emplace_back(specs[i].name, std::move(values[i]));
  }
  return gradients;
}

std::vector<SquaredNorm> DenseParameters::SquaredNorms(
    const GradientList& gradients) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return store_->SquaredNorms(gradients);
}

void DenseParameters::Update(const GradientList& gradients,
                             double gradient_scale, double learning_rate) {
  std::lock_guard<std::mutex> lock(mutex_);
  store_->Update(gradients, gradient_scale, step_ + 1, learning_rate);
  ++step_;
}

void DenseParameters::SkipUpdate() {
  std::lock_guard<std::mutex> lock(mutex_);
  ++step_;
}

int64_t DenseParameters::step() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return step_;
}

std::vector<NamedTensor> DenseParameters::Snapshot() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return store_->Snapshot();
}

}  // namespace gshard
