// GpuTest: a test on a GPU. The fake one of fake_cuda.h in what ctest runs, a
// real one in gpu_suite.

#ifndef TESTS_SERVICES_CUDA_GPU_TEST_H_
#define TESTS_SERVICES_CUDA_GPU_TEST_H_

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "services/graph/device.h"
#include "tests/testing/status_matchers.h"

namespace gshard {

// Defined by fake_gpu.cc and by gpu_suite.cc.
absl::StatusOr<std::shared_ptr<Device>> OpenGpuOfTests();
void ExpectNoMemoryInUse();

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto device = OpenGpuOfTests();
    ASSERT_OK(device.status());
    device_ = *std::move(device);
  }
  // Checks that nothing leaks.
  void TearDown() override {
    device_ = nullptr;
    ExpectNoMemoryInUse();
  }

  std::shared_ptr<Device> device_;
};

}  // namespace gshard

#endif  // TESTS_SERVICES_CUDA_GPU_TEST_H_
