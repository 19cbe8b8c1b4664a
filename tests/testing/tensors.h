// Random tensors and comparisons for tests.

#ifndef TESTS_TESTING_TENSORS_H_
#define TESTS_TESTING_TENSORS_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <utility>

#include "services/base/random.h"
#include "services/tensor/tensor.h"

namespace gshard {

// Elements uniform in [-scale, scale), a function of `seed`.
inline Tensor RandomTensor(Dims dims, uint64_t seed, float scale = 1.0f) {
  Tensor tensor(ElementType::kFloat32, std::move(dims));
  for (int64_t i = 0; i < tensor.size(); ++i) {
    tensor.f32()[i] = scale * (2.0f * RandomUniform(seed, i) - 1.0f);
  }
  return tensor;
}

// An i64[] tensor, as programs take keys of random numbers.
inline Tensor KeyTensor(int64_t key) {
  Tensor tensor(ElementType::kInt64, {});
  *tensor.data<int64_t>() = key;
  return tensor;
}

// |a - b| <= tolerance * (1 + |b|) for every element; NaN equals nothing.
inline ::testing::AssertionResult TensorNear(const Tensor& a, const Tensor& b,
                                             float tolerance) {
  if (a.type() != b.type() || a.dims() != b.dims()) {
    return ::testing::AssertionFailure()
           << a.TypeString() << " against " << b.TypeString();
  }
  for (int64_t i = 0; i < a.size(); ++i) {
    const float x = a.f32()[i], y = b.f32()[i];
    if (!(std::fabs(x - y) <= tolerance * (1.0f + std::fabs(y)))) {
      return ::testing::AssertionFailure()
             << "element " << i << " of " << a.TypeString() << ": " << x
             << " against " << y;
    }
  }
  return ::testing::AssertionSuccess();
}

// Equal bit for bit.
inline ::testing::AssertionResult TensorEqual(const Tensor& a,
                                              const Tensor& b) {
  if (a.type() != b.type() || a.dims() != b.dims()) {
    return ::testing::AssertionFailure()
           << a.TypeString() << " against " << b.TypeString();
  }
  if (std::memcmp(a.raw(), b.raw(), a.bytes()) != 0) {
    return ::testing::AssertionFailure()
           << a.TypeString() << ": the bits differ";
  }
  return ::testing::AssertionSuccess();
}

}  // namespace gshard

#endif  // TESTS_TESTING_TENSORS_H_
