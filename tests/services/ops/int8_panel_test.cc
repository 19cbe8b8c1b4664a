#include "services/ops/int8_panel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "services/ops/einsum.h"
#include "services/ops/embedding.h"
#include "services/ops/ragged_dot.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

// Packs `batch` matrices of `rows` rows, or `rows` columns if `transposed`.
Tensor InInt8Panels(const Tensor& weights, int64_t batch, int64_t rows,
                    bool transposed = false) {
  Tensor panels = NewInt8Panels(weights.dims(), batch, rows);
  const Tensor matrices = weights.Reshaped({batch, weights.size() / batch});
  for (int64_t i = 0; i < batch; ++i) {
    RoundMatrix(matrices.Rows(i, i + 1), i, transposed, panels);
  }
  return panels;
}

// Rounded values and their scale, by definition.
struct Rounded {
  std::vector<int32_t> values;
  float scale = 0.0f;
};
Rounded Round(const std::vector<float>& x) {
  float largest = 0.0f;
  for (const float value : x) largest = std::max(largest, std::abs(value));
  Rounded rounded;
  rounded.scale = largest / 127.0f;
  for (const float value : x) {
    rounded.values.push_back(
        largest == 0.0f
            ? 0
            : static_cast<int32_t>(std::nearbyint(value * (127.0f / largest))));
  }
  return rounded;
}

// The reference: [m, k] times [k, n], both rounded.
Tensor Product(const Tensor& a, const Tensor& b) {
  const int64_t m = a.dim(0), k = a.dim(1), n = b.dim(1);
  Tensor c(ElementType::kFloat32, {m, n});
  for (int64_t j = 0; j < n; ++j) {
    std::vector<float> column;
    for (int64_t i = 0; i < k; ++i) column.push_back(b.f32()[i * n + j]);
    const Rounded y = Round(column);
    for (int64_t r = 0; r < m; ++r) {
      const Rounded x = Round({a.f32() + r * k, a.f32() + (r + 1) * k});
      int32_t sum = 0;
      for (int64_t i = 0; i < k; ++i) sum += x.values[i] * y.values[i];
      c.f32()[r * n + j] = static_cast<float>(sum) * (x.scale * y.scale);
    }
  }
  return c;
}

Tensor Transposed(const Tensor& x) {
  Tensor y(ElementType::kFloat32, {x.dim(1), x.dim(0)});
  for (int64_t i = 0; i < x.dim(0); ++i) {
    for (int64_t j = 0; j < x.dim(1); ++j) {
      y.f32()[j * x.dim(0) + i] = x.f32()[i * x.dim(1) + j];
    }
  }
  return y;
}

// Products match for sizes around those of a block, a vector and a panel.
TEST(Int8PanelTest, EinsumEqualsReference) {
  ASSERT_OK_AND_ASSIGN(const EinsumSpec spec, ParseEinsum("mk,kn->mn"));
  ASSERT_OK_AND_ASSIGN(const EinsumSpec transposed, ParseEinsum("mk,nk->mn"));
  for (const int64_t m : {0, 1, 7, 8, 9, 300}) {
    for (const int64_t k : {1, 3, 4, 66}) {
      for (const int64_t n : {1, 16, 33, 48, 49, 600}) {
        if (m * k * n > 300 * 66 * 49 && k != 3) continue;  // takes long
        const Tensor a = RandomTensor({m, k}, 1), b = RandomTensor({k, n}, 2);
        const Tensor expected = Product(a, b);
        EXPECT_TRUE(
            TensorEqual(Einsum(spec, a, InInt8Panels(b, 1, k)), expected))
            << m << " " << k << " " << n;
        EXPECT_TRUE(TensorEqual(
            Einsum(transposed, a,
                   InInt8Panels(Transposed(b), 1, k, /*transposed=*/true)),
            expected))
            << m << " " << k << " " << n;
      }
    }
  }
}

TEST(Int8PanelTest, SumsOfTheDeepestMatrixFit) {
  ASSERT_OK_AND_ASSIGN(const EinsumSpec spec, ParseEinsum("mk,kn->mn"));
  Tensor a(ElementType::kFloat32, {2, kMaxInt8Depth});
  Tensor b(ElementType::kFloat32, {kMaxInt8Depth, 1});
  std::fill_n(a.f32(), kMaxInt8Depth, 1.0f);
  std::fill_n(a.f32() + kMaxInt8Depth, kMaxInt8Depth, -1.0f);
  std::fill_n(b.f32(), kMaxInt8Depth, 1.0f);
  const Tensor c = Einsum(spec, a, InInt8Panels(b, 1, kMaxInt8Depth));
  EXPECT_NEAR(c.f32()[0], kMaxInt8Depth, 1.0f);
  EXPECT_NEAR(c.f32()[1], -kMaxInt8Depth, 1.0f);
}

TEST(Int8PanelTest, IsWithinAPercentOfFloats) {
  ASSERT_OK_AND_ASSIGN(const EinsumSpec spec, ParseEinsum("mk,kn->mn"));
  const Tensor a = RandomTensor({40, 512}, 1), b = RandomTensor({512, 70}, 2);
  const Tensor exact = Einsum(spec, a, b);
  const Tensor rounded = Einsum(spec, a, InInt8Panels(b, 1, 512));
  double error = 0.0, size = 0.0;
  for (int64_t i = 0; i < exact.size(); ++i) {
    const double difference = exact.f32()[i] - rounded.f32()[i];
    error += difference * difference;
    size += exact.f32()[i] * exact.f32()[i];
  }
  EXPECT_LT(std::sqrt(error / size), 0.01);
  EXPECT_GT(error, 0.0);
}

TEST(Int8PanelTest, RaggedDotIsAProductPerExpert) {
  const std::vector<int32_t> sizes = {3, 0, 17, 1};
  const Tensor rows = RandomTensor({21, 34}, 1);
  const Tensor weights = RandomTensor({4, 34, 50}, 2);
  const Tensor result =
      RaggedDot(rows, InInt8Panels(weights, 4, 34), Tensor::Ints({4}, sizes));
  int64_t begin = 0;
  for (int64_t e = 0; e < 4; begin += sizes[e++]) {
    EXPECT_TRUE(TensorEqual(result.Rows(begin, begin + sizes[e]),
                            Product(rows.Rows(begin, begin + sizes[e]),
                                    weights.Rows(e, e + 1).Reshaped({34, 50}))))
        << e;
  }
}

TEST(Int8PanelTest, ARowOfATableIsAColumn) {
  const Tensor table = RandomTensor({100, 30}, 1);
  const Tensor rows = Embedding(InInt8Panels(table, 1, 30, /*transposed=*/true),
                                Tensor::Ints({3}, {0, 48, 99}));
  const std::vector<int64_t> ids = {0, 48, 99};
  for (size_t i = 0; i < ids.size(); ++i) {
    const float* const exact = table.f32() + ids[i] * 30;
    const Rounded expected = Round({exact, exact + 30});
    for (int64_t j = 0; j < 30; ++j) {
      EXPECT_EQ(rows.f32()[i * 30 + j],
                expected.scale * static_cast<float>(expected.values[j]));
    }
  }
}

TEST(Int8PanelTest, WhatIsNotFiniteStaysSoInItsRowOrColumn) {
  ASSERT_OK_AND_ASSIGN(const EinsumSpec spec, ParseEinsum("mk,kn->mn"));
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad :
       {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    Tensor a = RandomTensor({3, 20}, 1), b = RandomTensor({20, 5}, 2);
    a.f32()[20 + 7] = bad;
    b.f32()[9 * 5 + 2] = bad;
    const Tensor c = Einsum(spec, a, InInt8Panels(b, 1, 20));
    for (int64_t i = 0; i < c.size(); ++i) {
      EXPECT_EQ(std::isnan(c.f32()[i]), i / 5 == 1 || i % 5 == 2) << i;
    }
  }
}

TEST(Int8PanelTest, WhatIsNextToNothingIsZero) {
  ASSERT_OK_AND_ASSIGN(const EinsumSpec spec, ParseEinsum("mk,kn->mn"));
  Tensor a = Tensor::Zeros(ElementType::kFloat32, {2, 8});
  std::fill_n(a.f32() + 8, 8, 1e-40f);
  const Tensor c = Einsum(spec, a, InInt8Panels(RandomTensor({8, 3}, 2), 1, 8));
  EXPECT_TRUE(TensorEqual(c, Tensor::Zeros(ElementType::kFloat32, {2, 3})));
}

}  // namespace
}  // namespace gshard
