#include "services/ops/reduce.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/reference/shape.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

struct Case {
  Dims dims;
  std::vector<int> reduced;
};
const Case kCases[] = {
    {{3, 17, 5}, {0}},
    {{3, 17, 5}, {1}},
    {{3, 17, 5}, {2}},
    {{3, 17, 5}, {0, 2}},
    {{3, 17, 5}, {0, 1}},
    {{3, 17, 5}, {1, 2}},
    {{3, 17, 5}, {}},
    {{3, 17, 5}, {0, 1, 2}},
    {{4, 1, 3, 2}, {1, 3}},
    {{2, 0, 3}, {1}},
    {{2, 3, 0}, {2}},
    {{0, 3}, {1}},
    {{}, {}},
    {{1}, {0}},
};

TEST(ReduceTest, SumEqualsReference) {
  for (const Case& test : kCases) {
    const Tensor x = RandomTensor(test.dims, 1);
    EXPECT_TRUE(TensorNear(ReduceSum(x, test.reduced),
                           reference::ReduceSum(x, test.reduced), 1e-5f))
        << x.TypeString();
  }
}

TEST(ReduceTest, BroadcastEqualsReferenceAndInvertsTheSum) {
  for (const Case& test : kCases) {
    const Tensor like = RandomTensor(test.dims, 1);
    const Dims kept = reference::ReduceSum(like, test.reduced).dims();
    const Tensor x = RandomTensor(kept, 2);
    EXPECT_TRUE(TensorEqual(Broadcast(x, test.dims, test.reduced),
                            reference::Broadcast(x, test.dims, test.reduced)))
        << like.TypeString();
  }
}

}  // namespace
}  // namespace gshard
