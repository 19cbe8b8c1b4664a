// gpu_suite: the tests that hold a GPU's operators, programs, decoding and
// optimizers to the CPU's and to other implementations, on a real GPU. ctest
// runs the same on a fake one (cuda_ops_test).
//
//   gpu_suite [--device=cuda:N] [flags of GoogleTest]
//
// Exits with 77 if there is no such GPU.

#include <iostream>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "services/cuda/ops/open_device.h"
#include "tests/services/cuda/gpu_test.h"

namespace gshard {
namespace {

// One device for all tests, because opening takes a second.
std::shared_ptr<Device>& TheGpu() {
  static auto* const gpu = new std::shared_ptr<Device>();
  return *gpu;
}

int Main(int count, char** arguments) {
  ::testing::InitGoogleTest(&count, arguments);
  std::string name = "cuda:0";
  for (int i = 1; i < count; ++i) {
    absl::string_view argument = arguments[i];
    if (!absl::ConsumePrefix(&argument, "--device=")) {
      std::cerr << "gpu_suite: expected --device=cuda:N, got '" << argument
                << "'\n";
      return 2;
    }
    name = std::string(argument);
  }
  const auto gpu = OpenDevice(name);
  if (!gpu.ok() || *gpu == nullptr) {
    std::cerr << "gpu_suite: "
              << (gpu.ok() ? "expected a GPU, got the CPU"
                           : gpu.status().message())
              << "\n";
    return 77;
  }
  TheGpu() = *gpu;
  return RUN_ALL_TESTS();
}

}  // namespace

absl::StatusOr<std::shared_ptr<Device>> OpenGpuOfTests() { return TheGpu(); }

// What a real GPU's pool holds is not counted.
void ExpectNoMemoryInUse() {}

}  // namespace gshard

int main(int count, char** arguments) { return gshard::Main(count, arguments); }
