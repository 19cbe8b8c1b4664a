// Kernels give the same bits on any number of threads. Sizes span several
// tiles, the last one partial.

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "services/base/parallel.h"
#include "services/base/random.h"
#include "services/ops/attention.h"
#include "services/ops/cast.h"
#include "services/ops/cross_entropy.h"
#include "services/ops/dropout.h"
#include "services/ops/einsum.h"
#include "services/ops/elementwise.h"
#include "services/ops/embedding.h"
#include "services/ops/layer_norm.h"
#include "services/ops/paged_attention.h"
#include "services/ops/ragged_dot.h"
#include "services/ops/reduce.h"
#include "services/ops/rms_norm.h"
#include "services/ops/softmax.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

constexpr ElementType kBFloat16 = ElementType::kBFloat16;
constexpr ElementType kFloat32 = ElementType::kFloat32;

struct KernelCase {
  std::string name;
  std::function<std::vector<Tensor>()> run;
};

void PrintTo(const KernelCase& kernel, std::ostream* out) {
  *out << kernel.name;
}

Tensor RandomInts(Dims dims, uint64_t seed, int64_t end) {
  Tensor ints(ElementType::kInt32, std::move(dims));
  for (int64_t i = 0; i < ints.size(); ++i) {
    ints.i32()[i] = static_cast<int32_t>(RandomBelow(seed, i, end));
  }
  return ints;
}

std::vector<Tensor> Product(const char* letters, Dims a, Dims b,
                            ElementType type) {
  return {Einsum(*ParseEinsum(letters),
                 Cast(RandomTensor(std::move(a), 1), type),
                 Cast(RandomTensor(std::move(b), 2), type))};
}

std::vector<KernelCase> Products() {
  std::vector<KernelCase> cases;
  for (const ElementType type : {kFloat32, kBFloat16}) {
    const std::string of = " of " + std::string(ElementTypeName(type));
    cases.push_back({"few rows" + of, [type] {
                       return Product("rk,kn->rn", {3, 300}, {300, 1500}, type);
                     }});
    cases.push_back({"one row" + of, [type] {
                       return Product("rk,kn->rn", {1, 300}, {300, 1501}, type);
                     }});
    cases.push_back(
        {"many rows" + of, [type] {
           return Product("rk,kn->rn", {700, 300}, {300, 700}, type);
         }});
    cases.push_back(
        {"transposed weights" + of, [type] {
           return Product("rk,nk->rn", {301, 300}, {1500, 300}, type);
         }});
    cases.push_back(
        {"gradient of weights" + of, [type] {
           return Product("rk,rn->kn", {500, 300}, {500, 700}, type);
         }});
    cases.push_back(
        {"batch" + of, [type] {
           return Product("brk,bkn->brn", {5, 70, 90}, {5, 90, 80}, type);
         }});
    cases.push_back(
        {"experts" + of, [type] {
           const Tensor sizes = Tensor::Ints({4}, {300, 0, 1, 40});
           const Tensor rows = Cast(RandomTensor({341, 200}, 1), type);
           const Tensor weights = Cast(RandomTensor({4, 200, 600}, 2), type);
           const Tensor dresult = Cast(RandomTensor({341, 600}, 3), type);
           return std::vector<Tensor>{
               RaggedDot(rows, weights, sizes),
               RaggedDotRowsGradient(dresult, weights, sizes),
               RaggedDotWeightsGradient(rows, dresult, sizes)};
         }});
  }
  cases.push_back({"biases of experts", [] {
                     const Tensor sizes = Tensor::Ints({4}, {300, 0, 1, 40});
                     const Tensor rows = RandomTensor({341, 600}, 1);
                     return std::vector<Tensor>{
                         RaggedBiasAdd(rows, RandomTensor({4, 600}, 2), sizes),
                         RaggedBiasGradient(rows, sizes)};
                   }});
  return cases;
}

std::vector<KernelCase> Attentions() {
  std::vector<KernelCase> cases;
  for (const float dropout : {0.0f, 0.3f}) {
    cases.push_back(
        {"attention with dropout " + std::to_string(dropout), [dropout] {
           const Dims dims{5, 37, 3, 20};
           const Tensor q = RandomTensor(dims, 1), k = RandomTensor(dims, 2),
                        v = RandomTensor(dims, 3);
           const Tensor lengths = Tensor::Ints({5}, {37, 1, 0, 20, 36});
           const AttentionOptions options{.causal = true,
                                          .scale = 0.3f,
                                          .dropout_rate = dropout,
                                          .dropout_key = 7};
           const AttentionResult result = Attention(
               q, k, v, lengths, options, /*keep_statistics=*/true);
           const AttentionGradients gradients =
               AttentionGradient(q, k, v, lengths, options,
                                 result.statistics, RandomTensor(dims, 4));
           return std::vector<Tensor>{result.out, result.statistics,
                                      gradients.dq, gradients.dk, gradients.dv};
         }});
  }
  cases.push_back({"paged attention", [] {
                     const int64_t rows = 60, pages_of_row = 4, positions = 8;
                     const Dims cache{rows * pages_of_row, positions, 4, 16};
                     Tensor pages(ElementType::kInt32, {rows, pages_of_row});
                     for (int64_t i = 0; i < pages.size(); ++i) {
                       // Rows 2 j and 2 j + 1 share pages.
                       pages.i32()[i] = static_cast<int32_t>(
                           i / (2 * pages_of_row) * 7 + i % pages_of_row);
                     }
                     Tensor lengths(ElementType::kInt32, {rows});
                     for (int64_t r = 0; r < rows; ++r) {
                       lengths.i32()[r] = static_cast<int32_t>(r / 2 % 33);
                     }
                     return std::vector<Tensor>{PagedAttention(
                         RandomTensor({rows, 1, 4, 16}, 1),
                         RandomTensor(cache, 2), RandomTensor(cache, 3), pages,
                         lengths, 0.25f)};
                   }});
  return cases;
}

std::vector<KernelCase> OfRows() {
  const Dims dims{333, 301};
  const auto x = [dims](uint64_t seed) { return RandomTensor(dims, seed); };
  const auto row = [](uint64_t seed) { return RandomTensor({301}, seed); };
  return {
      {"layer norm",
       [=] {
         const LayerNormResult y = LayerNorm(x(1), row(2), row(3), 1e-5f);
         const LayerNormGradients d =
             LayerNormGradient(x(1), row(2), y.mean, y.inverse_std, x(4));
         return std::vector<Tensor>{y.y,  y.mean,   y.inverse_std,
                                    d.dx, d.dscale, d.dbias};
       }},
      {"rms norm",
       [=] {
         const RmsNormResult y = RmsNorm(x(1), row(2), 1e-5f);
         const RmsNormGradients d =
             RmsNormGradient(x(1), row(2), y.inverse_rms, x(4));
         return std::vector<Tensor>{y.y, y.inverse_rms, d.dx, d.dscale};
       }},
      {"softmax",
       [=] {
         const Tensor y = Softmax(x(1));
         return std::vector<Tensor>{y, SoftmaxGradient(y, x(2))};
       }},
      {"cross entropy",
       [=] {
         Tensor labels = RandomInts({333}, 2, 301);
         labels.i32()[100] = -1;
         const CrossEntropyOptions options{.smoothing = 0.1f, .z_loss = 1e-2f};
         const CrossEntropyResult loss = CrossEntropy(x(1), labels, options);
         return std::vector<Tensor>{
             loss.loss_sum, loss.log_sum_exp,
             CrossEntropyGradient(x(1), labels, loss.log_sum_exp, options,
                                  Tensor::Scalar(0.7f))};
       }},
      {"embedding",
       [=] {
         const Tensor ids = RandomInts({333}, 2, 50);
         return std::vector<Tensor>{
             Embedding(RandomTensor({50, 301}, 1), ids),
             Embedding(Cast(RandomTensor({50, 301}, 1), kBFloat16), ids),
             EmbeddingGradient(x(3), ids, 50)};
       }},
      {"reduce",
       [=] {
         return std::vector<Tensor>{
             ReduceSum(x(1), {0}), ReduceSum(x(1), {1}),
             ReduceSum(x(1), {0, 1}),
             SumToSuffix(RandomTensor({9, 40, 301}, 1), {40, 301})};
       }},
  };
}

std::vector<KernelCase> OfElements() {
  const auto x = [](uint64_t seed) { return RandomTensor({100003}, seed); };
  return {
      {"of two",
       [=] {
         const Tensor y = RandomTensor({100003}, 2, 0.5f);
         return std::vector<Tensor>{Add(x(1), y), Subtract(x(1), y),
                                    Multiply(x(1), y), Divide(x(1), y)};
       }},
      {"with a row",
       [] {
         return std::vector<Tensor>{
             Add(RandomTensor({1001, 99}, 1), RandomTensor({99}, 2))};
       }},
      {"with a scalar",
       [=] {
         return std::vector<Tensor>{Multiply(x(1), Tensor::Scalar(0.3f)),
                                    Scale(x(1), 0.3f)};
       }},
      {"of one",
       [=] {
         return std::vector<Tensor>{Exp(RandomTensor({100003}, 1, 60.0f)),
                                    Relu(x(1)),
                                    ReluGradient(x(1), x(2)),
                                    Relu(Cast(x(1), kBFloat16)),
                                    ReluGradient(Cast(x(1), kBFloat16), x(2)),
                                    Cast(Cast(x(1), kBFloat16), kFloat32)};
       }},
      {"dropout",
       [=] {
         return std::vector<Tensor>{
             Dropout(x(1), 0.3f, 5),
             DropoutRows(RandomTensor({400, 99}, 1), RandomInts({400}, 2, 1000),
                         0.3f, 5)};
       }},
  };
}

std::vector<KernelCase> AllKernels() {
  std::vector<KernelCase> all;
  for (const auto& cases : {Products(), Attentions(), OfRows(), OfElements()}) {
    all.insert(all.end(), cases.begin(), cases.end());
  }
  return all;
}

class ThreadsTest : public ::testing::TestWithParam<KernelCase> {
 protected:
  ~ThreadsTest() override { SetComputeThreads(1); }
};
INSTANTIATE_TEST_SUITE_P(All, ThreadsTest, ::testing::ValuesIn(AllKernels()));

TEST_P(ThreadsTest, DoNotChangeBits) {
  const std::vector<Tensor> alone = GetParam().run();
  for (const int threads : {2, 7}) {
    SetComputeThreads(threads);
    const std::vector<Tensor> together = GetParam().run();
    ASSERT_EQ(together.size(), alone.size());
    for (size_t i = 0; i < alone.size(); ++i) {
      EXPECT_TRUE(TensorEqual(together[i], alone[i]))
          << "result " << i << ", " << threads << " threads";
    }
  }
}

}  // namespace
}  // namespace gshard
