// Checks the GPU's operators by the cases of the CPU's kernels, on a fake GPU.

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "services/cuda/ops/cuda_kernels.h"
#include "tests/services/cuda/gpu_test.h"
#include "tests/services/graph/op_cases.h"
#include "tests/services/moe/moe_cases.h"

namespace gshard {
namespace {

// Operators that no program of a router or worker contains.
const std::set<std::string>& WithoutKernels() {
  static const auto* const names =
      new std::set<std::string>{"convolution",
                                "convolution_kernel_gradient",
                                "dynamic_slice",
                                "layer_norm",
                                "layer_norm_gradient",
                                "mask_tail",
                                "pad",
                                "reduce_max_gradient",
                                "reverse",
                                "softmax",
                                "softmax_gradient"};
  return *names;
}

std::vector<OpCase> CudaCases() {
  RegisterCudaKernels();
  std::vector<OpCase> cases;
  for (const auto& some : {AllGraphCases(), MoeCases()}) {
    for (const OpCase& c : some) {
      if (WithoutKernels().count(c.op) > 0) continue;
      cases.push_back(c);
      if (WithoutKernels().count(c.op + "_gradient") > 0) {
        cases.back().differentiated.clear();
      }
    }
  }
  return cases;
}

class CudaOpTest : public GpuTest,
                   public ::testing::WithParamInterface<OpCase> {};

INSTANTIATE_TEST_SUITE_P(All, CudaOpTest, ::testing::ValuesIn(CudaCases()));

TEST_P(CudaOpTest, KernelAgreesWithReference) {
  CheckAgainstReference(GetParam(), Backend::kCuda, device_.get());
}

TEST_P(CudaOpTest, GradientsAgreeWithReference) {
  CheckGradientsAgainstReference(GetParam(), Backend::kCuda, device_.get());
}

// WithoutKernels() lists exactly the operators without a kernel.
TEST(CudaOpNamesTest, AreThoseThatAreListed) {
  RegisterCudaKernels();
  std::set<std::string> missing;
  for (const auto& some : {AllGraphCases(), MoeCases()}) {
    for (const OpCase& c : some) {
      const bool is_fed = FindOp(c.op)->kernel == nullptr;
      if (!is_fed && FindKernel(c.op, Backend::kCuda) == nullptr) {
        missing.insert(c.op);
      }
    }
  }
  EXPECT_EQ(missing, WithoutKernels());
}

}  // namespace
}  // namespace gshard
