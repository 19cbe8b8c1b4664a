// Checks on a GPU that operators with int8 weights have the CPU's bits.

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "services/graph/builder.h"
#include "services/graph/device_executor.h"
#include "services/graph/weight_forms.h"
#include "tests/services/cuda/gpu_test.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

constexpr auto kFloat = ElementType::kFloat32;

class Int8OpsTest : public GpuTest {
 protected:
  // Runs the program on the CPU and on the GPU, there with the weights on the
  // device, as they are served, and on the host as float32.
  void ExpectTheCpusBits(const Program& program, const TensorMap& inputs,
                         const TensorMap& floats) {
    const DeviceExecutor cpu(program, nullptr), gpu(program, device_.get());
    ASSERT_OK(gpu.status());
    EXPECT_EQ(gpu.weight_forms(), cpu.weight_forms());
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> expected,
                         cpu.Run(inputs, floats));
    TensorMap served = floats;
    for (const auto& [name, form] : gpu.weight_forms()) {
      Tensor& tensor = served.at(name);
      if (form.type == ElementType::kInt8) {
        ASSERT_OK_AND_ASSIGN(tensor, RoundToInt8(tensor, form));
      }
      const size_t bytes = tensor.bytes();
      ASSERT_OK_AND_ASSIGN(tensor, CopyToDevice(*device_, tensor));
      EXPECT_EQ(tensor.bytes(), bytes);
    }
    for (const bool is_served : {true, false}) {
      ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> got,
                           gpu.Run(inputs, is_served ? served : floats));
      ASSERT_EQ(got.size(), expected.size());
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(TensorEqual(got[i], expected[i])) << i;
      }
    }
  }
};

TEST_F(Int8OpsTest, Einsum) {
  struct Case {
    std::string equation;
    Dims x, weights;
  };
  const std::vector<Case> cases = {
      {"mk,kn->mn", {1, 40}, {40, 50}},
      {"mk,kn->mn", {33, 30}, {30, 16}},
      {"mk,nk->mn", {5, 33}, {130, 33}},  // a tied output projection
      {"blm,mhd->blhd", {2, 3, 24}, {24, 4, 10}},
      {"blhd,hdm->blm", {3, 70, 4, 6}, {4, 6, 24}},
      {"mk,kn->mn", {0, 8}, {8, 8}}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.equation);
    Builder b("einsum");
    Shape shape(c.x.begin(), c.x.end());
    shape[0] = Dim::Symbol("N");
    b.Output("y", b.Einsum(c.equation, b.Input("x", {kFloat, shape}),
                           b.Parameter(
                               "w", Shape(c.weights.begin(), c.weights.end()),
                               ElementType::kInt8)));
    ASSERT_OK_AND_ASSIGN(const Program program, std::move(b).Finish());
    ExpectTheCpusBits(program, {{"x", RandomTensor(c.x, 1)}},
                      {{"w", RandomTensor(c.weights, 2)}});
  }
}

// A product of experts alone, and fused with what follows it.
TEST_F(Int8OpsTest, RaggedDot) {
  const Tensor sizes = Tensor::Ints({4}, {3, 0, 40, 1});
  for (const bool fused : {false, true}) {
    Builder b("experts");
    const ValueId rows = b.Input("rows", {kFloat, {Dim::Symbol("N"), Dim(20)}});
    const ValueId groups = b.Input("sizes", {ElementType::kInt32, {4}});
    ValueId y = b.RaggedDot(
        rows, b.Parameter("wi", {4, 20, 60}, ElementType::kInt8), groups);
    TensorMap parameters = {{"wi", RandomTensor({4, 20, 60}, 2)}};
    if (fused) {
      y = b.Relu(b.RaggedBiasAdd(y, b.Parameter("bias", {4, 60}), groups));
      parameters["bias"] = RandomTensor({4, 60}, 3);
    }
    b.Output("y", y);
    ASSERT_OK_AND_ASSIGN(const Program program, std::move(b).Finish());
    EXPECT_EQ(device_->Prepare(program).NodesOf("fused_ragged_dot").size(),
              fused ? 1u : 0u);
    ExpectTheCpusBits(program,
                      {{"rows", RandomTensor({44, 20}, 1)}, {"sizes", sizes}},
                      parameters);
  }
}

// A table that is looked up and multiplied by.
TEST_F(Int8OpsTest, Embedding) {
  Builder b("table");
  const ValueId table = b.Parameter("table", {100, 30}, ElementType::kInt8);
  const ValueId rows = b.Embedding(
      table, b.Input("ids", {ElementType::kInt32, {Dim::Symbol("N"), 2}}));
  b.Output("rows", rows);
  b.Output("logits", b.Einsum("nlm,vm->nlv", rows, table));
  ASSERT_OK_AND_ASSIGN(const Program program, std::move(b).Finish());
  ExpectTheCpusBits(program,
                    {{"ids", Tensor::Ints({3, 2}, {0, 99, 47, 48, 5, 96})}},
                    {{"table", RandomTensor({100, 30}, 1)}});
}

}  // namespace
}  // namespace gshard
