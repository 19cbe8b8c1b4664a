#include "services/ops/concat.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/reference/shape.h"
#include "tests/services/ops/numeric_gradient.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

TEST(ConcatTest, EqualsReferenceAlongEveryDimension) {
  for (int dim = 0; dim < 3; ++dim) {
    std::vector<Tensor> parts;
    for (const int64_t size : {3, 0, 1, 17}) {
      Dims dims = {2, 3, 5};
      dims[dim] = size;
      parts.push_back(RandomTensor(dims, size));
    }
    const Tensor whole = Concat(parts, dim);
    EXPECT_TRUE(TensorEqual(whole, reference::Concat(parts, dim)));
    int64_t begin = 0;
    for (const Tensor& part : parts) {
      const int64_t end = begin + part.dim(dim);
      const Tensor slice = Slice(whole, dim, begin, end);
      EXPECT_TRUE(TensorEqual(slice, part));
      EXPECT_TRUE(TensorEqual(slice, reference::Slice(whole, dim, begin, end)));
      EXPECT_TRUE(TensorEqual(
          SliceGradient(part, dim, begin, whole.dim(dim)),
          reference::SliceGradient(part, dim, begin, whole.dim(dim))));
      begin = end;
    }
  }
}

TEST(ConcatTest, OfIntegers) {
  const Tensor parts[] = {Tensor::Ints({1, 2}, {1, 2}),
                          Tensor::Ints({1, 1}, {3})};
  EXPECT_TRUE(TensorEqual(Concat(parts, 1), Tensor::Ints({1, 3}, {1, 2, 3})));
}

TEST(GatherRowsTest, EqualsReferenceWithZerosForNegativeIndices) {
  const Tensor x = RandomTensor({4, 3, 5}, 1);
  for (const std::vector<int32_t>& values :
       {std::vector<int32_t>{3, -1, 0, 0, 2}, {}, {-1}}) {
    const int64_t n = values.size();
    const Tensor indices = Tensor::Ints({n}, values);
    const Tensor dy = RandomTensor({n, 3, 5}, 2);
    EXPECT_TRUE(
        TensorEqual(GatherRows(x, indices), reference::GatherRows(x, indices)));
    const Tensor dx = ScatterAddRows(dy, indices, 4);
    EXPECT_TRUE(
        TensorNear(dx, reference::ScatterAddRows(dy, indices, 4), 1e-6f));
    EXPECT_TRUE(TensorNear(dx,
                           NumericGradient(
                               [&](const Tensor& at) {
                                 return reference::GatherRows(at, indices);
                               },
                               x, dy, 0.25f),
                           1e-4f));
  }
}

}  // namespace
}  // namespace gshard
