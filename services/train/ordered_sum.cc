#include "services/train/ordered_sum.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/parallel.h"
#include "services/ops/simd.h"

namespace gshard {
namespace {

// One function per type: clones for instruction sets can't be templates.
GSHARD_SIMD void AddTo(const float* value, int64_t size, float* sum) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) sum[i] += value[i];
}
GSHARD_SIMD void AddTo(const double* value, int64_t size, double* sum) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) sum[i] += value[i];
}
GSHARD_SIMD void AddTo(const int64_t* value, int64_t size, int64_t* sum) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) sum[i] += value[i];
}

template <typename T>
void AddElements(const Tensor& value, Tensor& sum) {
  ParallelForParts(sum.size(), PartOf(1), [&](int64_t begin, int64_t end) {
    AddTo(value.data<T>() + begin, end - begin, sum.data<T>() + begin);
  });
}

void AddTensor(const Tensor& value, Tensor& sum) {
  switch (sum.type()) {
    case ElementType::kFloat32:
      return AddElements<float>(value, sum);
    case ElementType::kFloat64:
      return AddElements<double>(value, sum);
    case ElementType::kInt64:
      return AddElements<int64_t>(value, sum);
    default:
      CHECK(false);
  }
}

absl::Status CheckSummable(const std::vector<Tensor>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    const bool is_summable =
        !values[i].empty() && (values[i].type() == ElementType::kFloat32 ||
                               values[i].type() == ElementType::kFloat64 ||
                               values[i].type() == ElementType::kInt64);
    if (!is_summable) {
      return absl::InvalidArgumentError(absl::StrCat(
          "value ", i, ": expected f32, f64 or i64, got ",
          values[i].empty() ? "an absent tensor" : values[i].TypeString()));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckAlike(const std::vector<Tensor>& values,
                        const std::vector<Tensor>& like) {
  if (values.size() != like.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected ", like.size(), " values, got ", values.size()));
  }
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i].empty() || values[i].type() != like[i].type() ||
        values[i].dims() != like[i].dims()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "value ", i, ": expected ", like[i].TypeString(), ", got ",
          values[i].empty() ? "an absent tensor" : values[i].TypeString()));
    }
  }
  return absl::OkStatus();
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
  std::lock_guard<std::mutex> lock(mutex_);
  if (index < next_ || early_.count(index) > 0) {
    return absl::AlreadyExistsError(
        absl::StrCat("microbatch ", index, " was added before"));
  }
  const std::vector<Tensor>* like = nullptr;
  if (next_ > 0) {
    like = &sum_;
  } else if (!early_.empty()) {
    like = &early_.begin()->second;
  }
  const absl::Status status =
      like == nullptr ? CheckSummable(values) : CheckAlike(values, *like);
  if (!status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("microbatch ", index, ", ", status.message()));
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
  for (size_t i = 0; i < sum_.size(); ++i) AddTensor(values[i], sum_[i]);
}

int64_t OrderedSum::next() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return next_;
}

bool OrderedSum::complete() const { return next() == count_; }

std::vector<Tensor> OrderedSum::Take() {
  std::lock_guard<std::mutex> lock(mutex_);
  CHECK(next_ == count_ && !taken_);
  taken_ = true;
  return std::move(sum_);
}

}  // namespace gshard
