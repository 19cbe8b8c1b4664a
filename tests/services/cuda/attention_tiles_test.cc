// Checks attention by tiles against the reference, and its promise of bits.

#include "services/cuda/kernels/attention_tiles.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "services/base/random.h"
#include "services/ops/cast.h"
#include "services/ops/concat.h"
#include "tests/reference/attention.h"
#include "tests/services/cuda/emulated_kernels.h"
#include "tests/testing/tensors.h"

namespace gshard::cuda {
namespace {

struct AttentionInputs {
  Tensor q, k, v, lengths, dout;
};

AttentionInputs MakeAttentionInputs(int64_t batch, int64_t queries,
                                    int64_t keys, int64_t heads, int64_t width,
                                    uint64_t seed) {
  const auto floats = [&](int64_t length, int i) {
    return RandomTensor({batch, length, heads, width}, FoldIn(seed, i), 2.0f);
  };
  AttentionInputs in{floats(queries, 1), floats(keys, 2), floats(keys, 3),
                     Tensor(ElementType::kInt32, {batch}), floats(queries, 4)};
  for (int64_t b = 0; b < batch; ++b) {
    in.lengths.i32()[b] = static_cast<int32_t>(
        b == 0 ? keys : RandomBelow(FoldIn(seed, 5), b, keys + 1));
  }
  return in;
}

FloatsOrRounded OperandOf(const Tensor& x) {
  if (x.type() == ElementType::kFloat32) return {x.f32(), nullptr};
  return {nullptr, x.data<BFloat16>()};
}

Tensor NaNs(const Dims& dims) {
  Tensor x(ElementType::kFloat32, dims);
  std::fill_n(x.f32(), x.size(), NAN);
  return x;
}

struct AttentionResults {
  AttentionResult forward;
  AttentionGradients gradients;
};

AttentionResults RunAttention(const AttentionInputs& in,
                              const AttentionOptions& options,
                              uint64_t seed = 1) {
  AttentionOperands operands = {};
  AttentionMask& mask = operands.mask;
  operands.batch = in.q.dim(0);
  mask.queries = in.q.dim(1);
  mask.keys = in.k.dim(1);
  mask.heads = in.q.dim(2);
  operands.width = in.q.dim(3);
  mask.lengths = in.lengths.i32();
  mask.first_sentence = options.first_sentence;
  mask.first_head = options.first_head;
  mask.first_query = options.first_query;
  mask.all_queries =
      options.all_queries > 0 ? options.all_queries : mask.queries;
  mask.causal = options.causal;
  mask.scale = options.scale;
  mask.dropout_rate = options.dropout_rate;
  mask.dropout_key = options.dropout_key;
  operands.q = OperandOf(in.q);
  operands.k = OperandOf(in.k);
  operands.v = OperandOf(in.v);
  const Dims rows = {operands.batch, mask.heads, mask.queries};
  AttentionResults results = {
      {NaNs(in.q.dims()), NaNs({rows[0], rows[1], rows[2], 2})},
      {NaNs(in.q.dims()), NaNs(in.k.dims()), NaNs(in.k.dims())}};
  Emulate(AttentionForward{operands, results.forward.out.f32(),
                           results.forward.statistics.f32()},
          seed);
  Tensor dots = NaNs(rows);
  Emulate(
      AttentionBackward{operands, results.forward.statistics.f32(),
                        in.dout.f32(), dots.f32(), results.gradients.dq.f32(),
                        results.gradients.dk.f32(), results.gradients.dv.f32()},
      seed);
  return results;
}

TEST(AttentionTilesTest, EqualTheReference) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const auto pick = [&](int what, std::vector<int64_t> from) {
      return from[RandomBelow(seed, what, from.size())];
    };
    const int64_t queries = pick(1, {0, 1, 3, 64, 65, 130});
    AttentionInputs in = MakeAttentionInputs(
        pick(2, {1, 2}), queries, pick(3, {0, 1, 5, 63, 64, 129, 200}),
        pick(4, {1, 2}), pick(5, {1, 3, 16, 40, 64, 65, 100, 128, 130, 256}),
        FoldIn(9, seed));
    AttentionOptions options{.causal = pick(6, {0, 1}) != 0,
                             .scale = 0.3f,
                             .dropout_rate = pick(7, {0, 1}) != 0 ? 0.3f : 0.0f,
                             .dropout_key = seed};
    if (pick(8, {0, 1}) != 0) {  // a part
      options.first_sentence = 3;
      options.first_head = 2;
      options.first_query = 7;
      options.all_queries = queries + pick(9, {7, 60});
    }
    SCOPED_TRACE("seed " + std::to_string(seed));
    const bool rounded = pick(10, {0, 1}) != 0;
    for (Tensor* x : {&in.q, &in.k, &in.v}) {
      if (rounded) *x = Cast(*x, ElementType::kBFloat16);
    }
    const AttentionResults got = RunAttention(in, options, seed + 1);
    for (Tensor* x : {&in.q, &in.k, &in.v})
      *x = Cast(*x, ElementType::kFloat32);
    const AttentionResult expected =
        reference::Attention(in.q, in.k, in.v, in.lengths, options);
    EXPECT_TRUE(TensorNear(got.forward.out, expected.out, 1e-5f));
    EXPECT_TRUE(TensorNear(got.forward.statistics, expected.statistics, 1e-5f));
    const AttentionGradients gradients = reference::AttentionGradient(
        in.q, in.k, in.v, in.lengths, options, expected.statistics, in.dout);
    EXPECT_TRUE(TensorNear(got.gradients.dq, gradients.dq, 1e-4f));
    EXPECT_TRUE(TensorNear(got.gradients.dk, gradients.dk, 1e-4f));
    EXPECT_TRUE(TensorNear(got.gradients.dv, gradients.dv, 1e-4f));
  }
}

// Alone, and with padding and beside another sentence.
TEST(AttentionTilesTest, ASentenceHasItsBits) {
  for (const int64_t length : {1, 31, 64, 65, 100}) {
    for (const bool causal : {false, true}) {
      SCOPED_TRACE(length);
      const AttentionOptions options{.causal = causal,
                                     .scale = 0.3f,
                                     .dropout_rate = 0.1f,
                                     .dropout_key = 2};
      const AttentionInputs alone =
          MakeAttentionInputs(1, length, length, 2, 20, 1);
      const int64_t padded = length + 70;
      AttentionInputs both = MakeAttentionInputs(2, padded, padded, 2, 20, 2);
      for (const auto& [part, whole] :
           {std::pair{&alone.q, &both.q}, std::pair{&alone.k, &both.k},
            std::pair{&alone.v, &both.v}, std::pair{&alone.dout, &both.dout}}) {
        std::copy_n(part->f32(), part->size(), whole->f32());
        // Padding of keys may be anything; queries there have no gradient.
        const float filler = whole == &both.k || whole == &both.v ? NAN : 0.0f;
        std::fill(whole->f32() + part->size(), whole->f32() + whole->size() / 2,
                  filler);
      }
      both.lengths = Tensor::Ints({2}, {static_cast<int32_t>(length), 7});
      const AttentionResults expected = RunAttention(alone, options);
      const AttentionResults got = RunAttention(both, options, 3);
      const auto first = [&](const Tensor& x) {
        return Slice(x.Rows(0, 1), 1, 0, length);
      };
      EXPECT_TRUE(TensorEqual(first(got.forward.out), expected.forward.out));
      EXPECT_TRUE(TensorEqual(first(got.gradients.dq), expected.gradients.dq));
      EXPECT_TRUE(TensorEqual(first(got.gradients.dk), expected.gradients.dk));
      EXPECT_TRUE(TensorEqual(first(got.gradients.dv), expected.gradients.dv));
      // Of padding, zeros.
      const Tensor rest = Slice(got.gradients.dk.Rows(0, 1), 1, length, padded);
      EXPECT_TRUE(
          TensorEqual(rest, Tensor::Zeros(ElementType::kFloat32, rest.dims())));
    }
  }
}

}  // namespace
}  // namespace gshard::cuda
