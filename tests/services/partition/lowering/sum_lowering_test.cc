// Sums of partial sums, as in the sublayers of a dense Transformer with heads
// and hidden width split.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/services/partition/lowering/partitioned_case.h"
#include "tests/testing/builder_ops.h"

namespace gshard {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr int64_t kSentences = 2, kLength = 5, kWidth = 8, kHeads = 4,
                  kHeadWidth = 3, kHidden = 12;

ValueType F32(Shape shape) { return {ElementType::kFloat32, std::move(shape)}; }

struct Sublayer {
  Builder b{"sublayer"};
  ValueId x, y;
  std::vector<ValueId> values;  // to differentiate by

  ValueId Weights(const std::string& name, Shape shape, int dim,
                  const std::string& axis) {
    const ValueId weights = b.Parameter(name, std::move(shape));
    values.push_back(weights);
    return Split(b, weights, dim, axis);
  }

  ValueId Norm(const std::string& name) {
    const ValueId scale = b.Parameter(name, {kWidth});
    values.push_back(scale);
    return b.RmsNorm(x, scale, 1e-6);
  }
};

// x + dropout(attention(norm(x))), causal.
void AddAttention(Sublayer& s, const std::string& axis) {
  Builder& b = s.b;
  const ValueId normed = s.Norm("attention_norm");
  const ValueId key = b.Input("key", {ElementType::kInt64, {}});
  const ValueId lengths =
      b.Input("lengths", {ElementType::kInt32, {kSentences}});
  std::vector<ValueId> qkv;
  for (const char* name : {"wq", "wk", "wv"}) {
    const ValueId w = s.Weights(name, {kWidth, kHeads, kHeadWidth}, 1, axis);
    qkv.push_back(b.Einsum("blm,mnd->blnd", normed, w));
  }
  const ValueId heads = b.Attention(qkv[0], qkv[1], qkv[2], lengths, key,
                                    {.causal = true,
                                     .scale = 0.5,
                                     .dropout_rate = 0.2,
                                     .salt = 1,
                                     .keep_statistics = true});
  const ValueId wo = s.Weights("wo", {kHeads, kHeadWidth, kWidth}, 0, axis);
  const ValueId out = b.Einsum("blnd,ndm->blm", heads, wo);
  s.x = b.Add(s.x, b.Dropout(out, key, 0.1, 2));
}

// x + dropout(w2 dropout(relu(w1 norm(x)))).
void AddFeedForward(Sublayer& s, const std::string& axis) {
  Builder& b = s.b;
  const ValueId normed = s.Norm("ffn_norm");
  const ValueId key = b.Input("ffn_key", {ElementType::kInt64, {}});
  const ValueId w1 = s.Weights("w1", {kWidth, kHidden}, 1, axis);
  const ValueId h = b.Relu(b.Einsum("blm,mh->blh", normed, w1));
  const ValueId w2 = s.Weights("w2", {kHidden, kWidth}, 0, axis);
  const ValueId out = b.Einsum("blh,hm->blm", b.Dropout(h, key, 0.3, 3), w2);
  s.x = b.Add(s.x, b.Dropout(out, key, 0.1, 4));
}

TensorMap Given() {
  return {{"lengths", IntTensor({kSentences}, {5, 3})},
          {"key", KeyTensor(5)},
          {"ffn_key", KeyTensor(6)}};
}

Sublayer Start() {
  Sublayer s;
  s.x = s.b.Input("x", F32({kSentences, kLength, kWidth}));
  s.values.push_back(s.x);
  return s;
}

TEST(SumLoweringTest, ASublayerReducesOnceForwards) {
  for (const int64_t devices : {2, 4}) {
    for (const bool attention : {true, false}) {
      Sublayer s = Start();
      attention ? AddAttention(s, "d") : AddFeedForward(s, "d");
      s.b.Output("y", s.x);
      EXPECT_THAT(CheckCase(std::move(s.b), Line(devices), Given(), 1e-5f),
                  ElementsAre("all_reduce"));
    }
  }
}

// A sublayer reduces once for its output and once for the gradient of its
// input; gradients of its weights need no reduction.
TEST(SumLoweringTest, ASublayerReducesOnceBackwards) {
  for (const int64_t devices : {2, 4}) {
    for (const bool attention : {true, false}) {
      Sublayer s = Start();
      const ValueId x = s.x;
      s.values = {x};
      attention ? AddAttention(s, "d") : AddFeedForward(s, "d");
      s.b.Output("y", s.x);
      AddWeightedGradients(s.b, s.x, s.values);
      EXPECT_THAT(CheckCase(std::move(s.b), Line(devices), Given(), 1e-5f),
                  ElementsAre("all_reduce", "all_reduce"));
    }
  }
}

TEST(SumLoweringTest, ALayerReducesOncePerSublayerEachWay) {
  for (const int64_t devices : {1, 2, 3, 4, 8}) {
    Sublayer s = Start();
    AddAttention(s, "d");
    AddFeedForward(s, "d");
    s.b.Output("y", s.x);
    AddWeightedGradients(s.b, s.x, s.values);
    const auto collectives =
        CheckCase(std::move(s.b), Line(devices), Given(), 1e-5f);
    EXPECT_THAT(collectives, Each(std::string("all_reduce")));
    EXPECT_THAT(collectives, SizeIs(devices == 1 ? 0 : 4));
  }
}

// With sentences on one axis and heads on the other, gradients of weights are
// summed over the sentences' axis, and nothing is gathered.
TEST(SumLoweringTest, SentencesAndHeadsOnTwoAxes) {
  Sublayer s = Start();
  Split(s.b, s.x, 0, "x");
  AddAttention(s, "y");
  AddFeedForward(s, "y");
  s.b.Output("y", s.x);
  AddWeightedGradients(s.b, s.x, s.values);
  EXPECT_THAT(CheckCase(std::move(s.b), Square(), Given(), 1e-5f),
              Each(std::string("all_reduce")));
}

TEST(SumLoweringTest, APartialSumThatIsNeededTwiceIsMadeAtOnce) {
  for (const int64_t devices : {2, 3}) {
    Builder b("sums");
    const ValueId x = b.Input("x", F32({4, 6}));
    Split(b, x, 1, "d");
    const ValueId first = b.Einsum("ab,bc->ac", x, b.Parameter("u", {6, 3}));
    const ValueId second = b.Einsum("ab,bc->ac", x, b.Parameter("v", {6, 3}));
    const ValueId sum = Subtract(b, first, second);
    b.Output("sum", b.Relu(sum));
    b.Output("product", b.Multiply(sum, sum));
    EXPECT_THAT(CheckCase(std::move(b), Line(devices), {}, 1e-5f),
                ElementsAre("all_reduce"));
  }
}

}  // namespace
}  // namespace gshard
