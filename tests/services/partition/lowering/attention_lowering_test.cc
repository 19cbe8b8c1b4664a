#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/services/partition/lowering/partitioned_case.h"

namespace gshard {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;
using ::testing::Not;

struct Sizes {
  int64_t sentences = 3;
  int64_t queries = 5;
  int64_t keys = 7;
  int64_t heads = 6;
};

// Attention with dropout, its weights and its gradients; each dim of q in
// `splits` is split along its axis.
Builder AttentionCase(const Sizes& sizes, bool causal, double dropout,
                      const std::vector<std::pair<int, std::string>>& splits) {
  Builder b("attention");
  const Shape queries = {sizes.sentences, sizes.queries, sizes.heads, 4};
  const Shape keys = {sizes.sentences, sizes.keys, sizes.heads, 4};
  const ValueId q = b.Input("q", {ElementType::kFloat32, queries});
  const ValueId k = b.Input("k", {ElementType::kFloat32, keys});
  const ValueId v = b.Input("v", {ElementType::kFloat32, keys});
  const ValueId lengths =
      b.Input("lengths", {ElementType::kInt32, {sizes.sentences}});
  const ValueId key = b.Input("key", {ElementType::kInt64, {}});
  for (const auto& [dim, axis] : splits) Split(b, q, dim, axis);
  const ValueId y = b.Attention(q, k, v, lengths, dropout > 0 ? key : kNoValue,
                                {.causal = causal,
                                 .scale = 0.5,
                                 .dropout_rate = dropout,
                                 .salt = 4,
                                 .keep_statistics = true});
  b.Output("y", y);
  b.Output("weights", b.program().nodes.back().outputs[1]);
  AddWeightedGradients(b, y, {q, k, v});
  return b;
}

TensorMap SizesInputs(const Sizes& sizes) {
  std::vector<int32_t> lengths;
  for (int64_t s = 0; s < sizes.sentences; ++s) {
    lengths.push_back(static_cast<int32_t>((5 * s + 3) % (sizes.keys + 1)));
  }
  return {{"lengths", IntTensor({sizes.sentences}, lengths)},
          {"key", KeyTensor(99)}};
}

// Splitting by sentence or head splits no sum, so the bits stay the same.
TEST(AttentionLoweringTest, BySentenceAndByHead) {
  for (const int64_t devices : {1, 2, 3, 4, 8}) {
    for (const int dim : {0, 2}) {
      for (const bool causal : {false, true}) {
        for (const double dropout : {0.0, 0.3}) {
          EXPECT_THAT(
              CheckCase(AttentionCase({}, causal, dropout, {{dim, "d"}}),
                        Line(devices), SizesInputs({}), 0),
              IsEmpty());
        }
      }
    }
  }
}

// Splitting by query makes dk and dv sums over devices, but gathers nothing.
TEST(AttentionLoweringTest, ByQuery) {
  for (const int64_t devices : {1, 2, 3, 4, 8}) {
    for (const int64_t queries : {5, 8}) {
      for (const bool causal : {false, true}) {
        for (const double dropout : {0.0, 0.3}) {
          const Sizes sizes = {.queries = queries, .keys = 9};
          EXPECT_THAT(
              CheckCase(AttentionCase(sizes, causal, dropout, {{1, "d"}}),
                        Line(devices), SizesInputs(sizes), 1e-5f),
              Not(Contains("all_gather")));
        }
      }
    }
  }
}

TEST(AttentionLoweringTest, TwoAxes) {
  for (const auto& [first, second] :
       std::vector<std::pair<int, int>>{{0, 1}, {0, 2}, {1, 2}, {2, 2}}) {
    CheckCase(AttentionCase({}, true, 0.3, {{first, "x"}, {second, "y"}}),
              Square(), SizesInputs({}), 1e-5f);
  }
}

TEST(AttentionLoweringTest, SizesThatAreSymbols) {
  for (const int64_t devices : {1, 2, 4}) {
    for (const int dim : {0, 1}) {
      Builder b("attention");
      const Dim B = Dim::Symbol("B"), L = Dim::Symbol("L");
      const Shape shape = {B, L, 2, 4};
      const ValueId q = b.Input("q", {ElementType::kFloat32, shape});
      const ValueId k = b.Input("k", {ElementType::kFloat32, shape});
      const ValueId lengths = b.Input("lengths", {ElementType::kInt32, {B}});
      const ValueId key = b.Input("key", {ElementType::kInt64, {}});
      Split(b, q, dim, "d");
      Replicate(b, k);
      b.Output("y", b.Attention(q, k, k, lengths, key,
                                {.causal = true, .dropout_rate = 0.3}));
      CheckCase(std::move(b), Line(devices),
                {{"q", RandomTensor({4, 8, 2, 4}, 1)},
                 {"k", RandomTensor({4, 8, 2, 4}, 2)},
                 {"lengths", IntTensor({4}, {8, 3, 5, 1})},
                 {"key", KeyTensor(3)}},
                0);
    }
  }
}

}  // namespace
}  // namespace gshard
