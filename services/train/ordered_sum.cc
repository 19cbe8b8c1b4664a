#include "services/train/ordered_sum.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/parallel.h"
#include "services/base/status_macros.h"
#include "services/ops/elementwise.h"

namespace gshard {
namespace {

absl::Status AddTensor(const Tensor& value, Tensor& sum) {
  CHECK(value.dims() == sum.dims());
  Tensor result;
  if (sum.unique()) {
    result = sum;
  } else {
    ASSIGN_OR_RETURN(result, AllocateTensor(ElementType::kFloat32, sum.dims()));
  }
  ParallelForChunks(sum.size(), ChunkSize(1), [&](int64_t begin, int64_t end) {
    AddRow(sum.f32() + begin, value.f32() + begin, result.f32() + begin,
           end - begin);
  });
  sum = std::move(result);
  return absl::OkStatus();
}

}  // namespace

OrderedSum::OrderedSum(int64_t count, int64_t max_early, Device* device)
    : count_(count), max_early_(max_early), device_(device) {
  CHECK(count >= 1 && max_early >= 0);
}

absl::Status OrderedSum::Add(int64_t index, std::vector<Tensor> values) {
  if (index < 0 || index >= count_) {
    return absl::OutOfRangeError(absl::StrCat("expected a microbatch in [0, ",
                                              count_, "), got ", index));
  }
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(status_);
  if (index < next_ || early_.count(index) > 0) {
    return absl::AlreadyExistsError(
        absl::StrCat("microbatch ", index, " was added before"));
  }
  if (index != next_) {
    if (index - next_ > max_early_) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "microbatch ", index, " is early: expected at most ",
          next_ + max_early_, " before microbatch ", next_, " is added"));
    }
    early_.emplace(index, std::move(values));
    return absl::OkStatus();
  }
  AddNext(std::move(values));
  while (!early_.empty() && early_.begin()->first == next_) {
    AddNext(std::move(early_.begin()->second));
    early_.erase(early_.begin());
  }
  return status_;
}

void OrderedSum::AddNext(std::vector<Tensor> values) {
  if (device_ != nullptr) {
    if (status_.ok()) status_ = AddOnDevice(values);
    ++next_;
    return;
  }
  if (next_++ == 0) {
    sum_ = std::move(values);
    return;
  }
  CHECK(values.size() == sum_.size());
  for (size_t i = 0; i < sum_.size() && status_.ok(); ++i) {
    status_ = AddTensor(values[i], sum_[i]);
  }
}

absl::Status OrderedSum::AddOnDevice(const std::vector<Tensor>& values) {
  ASSIGN_OR_RETURN(const std::unique_ptr<DeviceRun> run, device_->BeginRun());
  const bool first = next_ == 0;
  CHECK(first || values.size() == sum_.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const bool shared = !values[i].on_host() && !values[i].unique();
    ASSIGN_OR_RETURN(Tensor value, run->ToDevice(values[i]));
    if (first) {
      if (shared) {
        ASSIGN_OR_RETURN(value, run->Copy(value));
      }
      sum_.push_back(std::move(value));
      continue;
    }
    CHECK(value.dims() == sum_[i].dims());
    RETURN_IF_ERROR(run->Add(value, sum_[i]));
  }
  return run->Finish();
}

absl::Status OrderedSum::status() const {
  MutexLock lock(mutex_);
  return status_;
}

int64_t OrderedSum::next() const {
  MutexLock lock(mutex_);
  return next_;
}

bool OrderedSum::complete() const { return next() == count_; }

std::vector<Tensor> OrderedSum::Take() {
  MutexLock lock(mutex_);
  CHECK(next_ == count_ && status_.ok() && !taken_);
  taken_ = true;
  return std::move(sum_);
}

}  // namespace gshard
