#include "services/train/ordered_sum.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/parallel.h"
#include "services/ops/simd.h"

namespace gshard {
namespace {

GSHARD_SIMD void AddTo(const float* value, int64_t size, float* sum) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) sum[i] += value[i];
}

void AddTensor(const Tensor& value, Tensor& sum) {
  CHECK(value.dims() == sum.dims());
  ParallelForChunks(sum.size(), ChunkSize(1), [&](int64_t begin, int64_t end) {
    AddTo(value.f32() + begin, end - begin, sum.f32() + begin);
  });
}

}  // namespace

OrderedSum::OrderedSum(int64_t count, int64_t max_pending)
    : count_(count), max_pending_(max_pending) {
  CHECK(count >= 1 && max_pending >= 0);
}

absl::Status OrderedSum::Add(int64_t index, std::vector<Tensor> values) {
  if (index < 0 || index >= count_) {
    return absl::OutOfRangeError(absl::StrCat("expected a microbatch in [0, ",
                                              count_, "), got ", index));
  }
  MutexLock lock(mutex_);
  if (index < next_ || early_.count(index) > 0) {
    return absl::AlreadyExistsError(
        absl::StrCat("microbatch ", index, " was added before"));
  }
  if (index != next_) {
    if (static_cast<int64_t>(early_.size()) >= max_pending_) {
      return absl::ResourceExhaustedError(
          absl::StrCat("microbatch ", index, " is early: ", early_.size(),
                       " others wait for microbatch ", next_, ", and at most ",
                       max_pending_, " may"));
    }
    early_.emplace(index, std::move(values));
    return absl::OkStatus();
  }
  AddNext(std::move(values));
  while (!early_.empty() && early_.begin()->first == next_) {
    AddNext(std::move(early_.begin()->second));
    early_.erase(early_.begin());
  }
  return absl::OkStatus();
}

void OrderedSum::AddNext(std::vector<Tensor> values) {
  if (next_++ == 0) {
    sum_ = std::move(values);
    for (Tensor& tensor : sum_) {
      if (!tensor.unique()) tensor = tensor.Clone();
    }
    return;
  }
  CHECK(values.size() == sum_.size());
  for (size_t i = 0; i < sum_.size(); ++i) AddTensor(values[i], sum_[i]);
}

int64_t OrderedSum::next() const {
  MutexLock lock(mutex_);
  return next_;
}

bool OrderedSum::complete() const { return next() == count_; }

std::vector<Tensor> OrderedSum::Take() {
  MutexLock lock(mutex_);
  CHECK(next_ == count_ && !taken_);
  taken_ = true;
  return std::move(sum_);
}

}  // namespace gshard
