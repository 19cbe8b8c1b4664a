// The fake GPU of GpuTest, anew for each test.

#include "services/cuda/ops/open_device.h"
#include "tests/services/cuda/fake_cuda.h"
#include "tests/services/cuda/gpu_test.h"

namespace gshard {

absl::StatusOr<std::shared_ptr<Device>> OpenGpuOfTests() {
  TheFakeCuda() = FakeCuda();
  // Not cuda:0, which is current on threads that have not chosen a GPU.
  return OpenDevice("cuda:1");
}

void ExpectNoMemoryInUse() {
  EXPECT_EQ(TheFakeCuda().device_bytes, 0);
  EXPECT_EQ(TheFakeCuda().pinned_bytes, 0);
}

}  // namespace gshard
