// GpuTest: a test on a fake GPU (fake_cuda.h).

#ifndef TESTS_SERVICES_CUDA_GPU_TEST_H_
#define TESTS_SERVICES_CUDA_GPU_TEST_H_

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "services/cuda/ops/open_device.h"
#include "tests/services/cuda/fake_cuda.h"
#include "tests/testing/status_matchers.h"

namespace gshard {

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    TheFakeCuda() = FakeCuda();
    // Not cuda:0, which is current on threads that have not chosen a GPU.
    auto device = OpenDevice("cuda:1");
    ASSERT_OK(device.status());
    device_ = *std::move(device);
  }
  // Checks that nothing leaks.
  void TearDown() override {
    device_ = nullptr;
    EXPECT_EQ(TheFakeCuda().device_bytes, 0);
    EXPECT_EQ(TheFakeCuda().pinned_bytes, 0);
  }

  std::shared_ptr<Device> device_;
};

}  // namespace gshard

#endif  // TESTS_SERVICES_CUDA_GPU_TEST_H_
