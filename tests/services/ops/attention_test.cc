#include "services/ops/attention.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "services/ops/concat.h"
#include "services/ops/softmax.h"
#include "services/ops/tile_matmul.h"
#include "tests/reference/attention.h"
#include "tests/services/ops/numeric_gradient.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

struct Case {
  int64_t batch, queries, keys, heads, width;
};
const Case kCases[] = {
    {1, 1, 1, 1, 1},   {2, 3, 17, 2, 3},   {3, 17, 17, 2, 16},
    {2, 5, 33, 3, 32}, {1, 40, 70, 1, 17}, {2, 0, 3, 1, 4},
    {2, 3, 0, 1, 4},   {0, 3, 3, 1, 4},    {1, 131, 131, 2, 5}};

struct Inputs {
  Tensor q, k, v, key_lengths, dout;
};

Inputs MakeInputs(const Case& c) {
  Inputs inputs{RandomTensor({c.batch, c.queries, c.heads, c.width}, 1, 2.0f),
                RandomTensor({c.batch, c.keys, c.heads, c.width}, 2, 2.0f),
                RandomTensor({c.batch, c.keys, c.heads, c.width}, 3),
                Tensor(ElementType::kInt32, {c.batch}),
                RandomTensor({c.batch, c.queries, c.heads, c.width}, 4)};
  for (int64_t b = 0; b < c.batch; ++b) {
    inputs.key_lengths.i32()[b] =
        static_cast<int32_t>(b == 1 ? c.keys / 2 : c.keys);
  }
  return inputs;
}

TEST(AttentionTest, EqualsReference) {
  for (const Case& c : kCases) {
    const Inputs in = MakeInputs(c);
    for (const bool causal : {false, true}) {
      for (const float rate : {0.0f, 0.3f}) {
        const AttentionOptions options{.causal = causal,
                                       .scale = 0.4f,
                                       .dropout_rate = rate,
                                       .dropout_key = 9};
        const AttentionResult result =
            Attention(in.q, in.k, in.v, in.key_lengths, options, true);
        const AttentionResult expected =
            reference::Attention(in.q, in.k, in.v, in.key_lengths, options);
        EXPECT_TRUE(TensorNear(result.out, expected.out, 2e-6f));
        EXPECT_TRUE(TensorNear(result.statistics, expected.statistics, 2e-6f));
        const Tensor forward_only =
            Attention(in.q, in.k, in.v, in.key_lengths, options, false).out;
        EXPECT_TRUE(TensorEqual(forward_only, result.out));

        const AttentionGradients gradients =
            AttentionGradient(in.q, in.k, in.v, in.key_lengths, options,
                              result.statistics, in.dout);
        const AttentionGradients expected_gradients =
            reference::AttentionGradient(in.q, in.k, in.v, in.key_lengths,
                                         options, result.statistics, in.dout);
        EXPECT_TRUE(TensorNear(gradients.dq, expected_gradients.dq, 1e-5f));
        EXPECT_TRUE(TensorNear(gradients.dk, expected_gradients.dk, 1e-5f));
        EXPECT_TRUE(TensorNear(gradients.dv, expected_gradients.dv, 1e-5f));
      }
    }
  }
}

TEST(AttentionTest, GradientsEqualDifferences) {
  const Inputs in = MakeInputs({2, 4, 5, 2, 3});
  for (const bool causal : {false, true}) {
    const AttentionOptions options{.causal = causal,
                                   .scale = 0.5f,
                                   .dropout_rate = 0.25f,
                                   .dropout_key = 5};
    const Tensor statistics =
        Attention(in.q, in.k, in.v, in.key_lengths, options, true).statistics;
    const AttentionGradients gradients = AttentionGradient(
        in.q, in.k, in.v, in.key_lengths, options, statistics, in.dout);
    const auto out = [&](const Tensor& q, const Tensor& k, const Tensor& v) {
      return reference::Attention(q, k, v, in.key_lengths, options).out;
    };
    EXPECT_TRUE(TensorNear(
        gradients.dq,
        NumericGradient([&](const Tensor& at) { return out(at, in.k, in.v); },
                        in.q, in.dout),
        2e-3f));
    EXPECT_TRUE(TensorNear(
        gradients.dk,
        NumericGradient([&](const Tensor& at) { return out(in.q, at, in.v); },
                        in.k, in.dout),
        2e-3f));
    EXPECT_TRUE(TensorNear(
        gradients.dv,
        NumericGradient([&](const Tensor& at) { return out(in.q, in.k, at); },
                        in.v, in.dout),
        2e-3f));
  }
}

// As attention.h guarantees, a sentence has the same bits alone, with any
// padding, and beside others, forward and backward.
TEST(AttentionTest, ASentenceIsTheSameWithPaddingAndNeighbours) {
  for (const int64_t length : {1, 2, 3, 5, 8, 13, 16, 17, 31}) {
    for (const bool causal : {false, true}) {
      const AttentionOptions options{.causal = causal,
                                     .scale = 0.3f,
                                     .dropout_rate = 0.1f,
                                     .dropout_key = 2};
      const Inputs alone = MakeInputs({1, length, length, 2, 20});
      const Inputs others = MakeInputs({2, length + 21, length + 21, 2, 20});
      Inputs both = others;
      for (const auto& [part, whole] :
           {std::pair{&alone.q, &both.q}, std::pair{&alone.k, &both.k},
            std::pair{&alone.v, &both.v}, std::pair{&alone.dout, &both.dout}}) {
        *whole = whole->Clone();
        std::copy_n(part->f32(), part->size(), whole->f32());
        // Padding of keys may be anything; that of queries must be finite.
        if (whole == &both.k || whole == &both.v) {
          std::fill(whole->f32() + part->size(),
                    whole->f32() + whole->size() / 2, NAN);
        } else if (whole == &both.dout) {
          std::fill(whole->f32() + part->size(),
                    whole->f32() + whole->size() / 2, 0.0f);
        }
      }
      both.key_lengths = Tensor::Ints({2}, {static_cast<int32_t>(length), 7});

      const AttentionResult expected = Attention(
          alone.q, alone.k, alone.v, alone.key_lengths, options, true);
      const AttentionResult result =
          Attention(both.q, both.k, both.v, both.key_lengths, options, true);
      const auto first = [&](const Tensor& x) {
        return Slice(x.Rows(0, 1), 1, 0, length);
      };
      EXPECT_TRUE(TensorEqual(first(result.out), expected.out)) << length;

      const AttentionGradients expected_gradients =
          AttentionGradient(alone.q, alone.k, alone.v, alone.key_lengths,
                            options, expected.statistics, alone.dout);
      const AttentionGradients gradients =
          AttentionGradient(both.q, both.k, both.v, both.key_lengths, options,
                            result.statistics, both.dout);
      EXPECT_TRUE(TensorEqual(first(gradients.dq), expected_gradients.dq));
      EXPECT_TRUE(TensorNear(first(gradients.dk), expected_gradients.dk, 0));
      EXPECT_TRUE(TensorNear(first(gradients.dv), expected_gradients.dv, 0));
    }
  }
}

TEST(AttentionTest, NoKeysGiveZeros) {
  const Inputs in = MakeInputs({1, 3, 4, 2, 8});
  const Tensor none = Tensor::Ints({1}, {0});
  const AttentionResult result = Attention(in.q, in.k, in.v, none, {}, true);
  EXPECT_TRUE(TensorEqual(result.out,
                          Tensor::Zeros(ElementType::kFloat32, in.q.dims())));
  const AttentionGradients gradients =
      AttentionGradient(in.q, in.k, in.v, none, {}, result.statistics, in.dout);
  for (const Tensor& gradient : {gradients.dq, gradients.dk, gradients.dv}) {
    EXPECT_TRUE(TensorEqual(
        gradient, Tensor::Zeros(ElementType::kFloat32, gradient.dims())));
  }
}

// The gradient adds up blocks of queries. That has the bits of one product over
// all of them.
TEST(AttentionTest, BlocksOfQueriesAddUpToOneProduct) {
  constexpr int64_t kQueries = 200, kKeys = 96, kWidth = 16;
  const Inputs in = MakeInputs({1, kQueries, kKeys, 1, kWidth});
  for (const bool causal : {false, true}) {
    const AttentionOptions options{.causal = causal, .scale = 0.4f};
    std::vector<float> transposed(kWidth * kKeys), p(kQueries * kKeys);
    for (int64_t j = 0; j < kKeys; ++j) {
      for (int64_t d = 0; d < kWidth; ++d) {
        transposed[d * kKeys + j] = in.k.f32()[j * kWidth + d];
      }
    }
    TileMatmul(kQueries, kKeys, kWidth, {in.q.f32(), kWidth, 1},
               transposed.data(), kKeys, p.data(), kKeys);
    for (int64_t i = 0; i < kQueries; ++i) {
      const int64_t seen =
          causal ? std::max<int64_t>(0, i + 1 + kKeys - kQueries) : kKeys;
      SoftmaxRow(p.data() + i * kKeys, seen, kKeys, options.scale);
    }
    Tensor dv(ElementType::kFloat32, in.v.dims());
    TileMatmul(kKeys, kWidth, kQueries, {p.data(), 1, kKeys}, in.dout.f32(),
               kWidth, dv.f32(), kWidth);
    const Tensor statistics =
        Attention(in.q, in.k, in.v, in.key_lengths, options, true).statistics;
    EXPECT_TRUE(TensorEqual(AttentionGradient(in.q, in.k, in.v, in.key_lengths,
                                              options, statistics, in.dout)
                                .dv,
                            dv));
  }
}

// Threads keep no scores of all pairs of a long sentence, which take 16 MiB.
TEST(AttentionTest, ALongSentenceLeavesNoMemoryBehind) {
  const Inputs in = MakeInputs({1, 2048, 2048, 1, 4});
  const auto allocated = [] {
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
  };
  const size_t before = allocated();
  Attention(in.q, in.k, in.v, in.key_lengths, {}, false);
  EXPECT_LT(allocated(), before + (4 << 20));
  const Tensor statistics =
      Attention(in.q, in.k, in.v, in.key_lengths, {}, true).statistics;
  const size_t with_statistics = allocated();
  AttentionGradient(in.q, in.k, in.v, in.key_lengths, {}, statistics, in.dout);
  EXPECT_LT(allocated(), with_statistics + (4 << 20));
}

TEST(AttentionTest, TheLastQueryOfACacheSeesAll) {
  const Inputs in = MakeInputs({1, 1, 9, 1, 4});
  const AttentionOptions causal{.causal = true};
  EXPECT_TRUE(TensorEqual(
      Attention(in.q, in.k, in.v, in.key_lengths, causal, false).out,
      Attention(in.q, in.k, in.v, in.key_lengths, {}, false).out));
}

}  // namespace
}  // namespace gshard
