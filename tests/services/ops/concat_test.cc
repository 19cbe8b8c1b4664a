#include "services/ops/concat.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/reference/shape.h"
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

}  // namespace
}  // namespace gshard
