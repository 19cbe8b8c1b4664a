#include "services/cuda/ops/open_device.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#ifdef GSHARD_HAS_CUDA
#include "services/cuda/cuda_device.h"
#include "services/cuda/ops/cuda_kernels.h"
#endif

namespace gshard {

absl::StatusOr<std::shared_ptr<Device>> OpenDevice(absl::string_view name) {
  if (name == "cpu") return nullptr;
  absl::string_view number = name;
  int gpu = 0;
  if (!absl::ConsumePrefix(&number, "cuda:") ||
      !absl::SimpleAtoi(number, &gpu) || gpu < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected the device 'cpu' or 'cuda:N', got '", name, "'"));
  }
#ifdef GSHARD_HAS_CUDA
  RegisterCudaKernels();
  return CudaDevice::Open(gpu);
#else
  return absl::FailedPreconditionError(
      absl::StrCat("device ", name, ": this program was built without CUDA"));
#endif
}

}  // namespace gshard
