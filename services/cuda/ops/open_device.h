// Opens the devices that command-line flags name.

#ifndef SERVICES_CUDA_OPS_OPEN_DEVICE_H_
#define SERVICES_CUDA_OPS_OPEN_DEVICE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/graph/device.h"

namespace gshard {

// `name` is "cpu", which returns null, as the CPU needs no Device; or "cuda:N"
// for GPU N of those visible to the process (CUDA_VISIBLE_DEVICES), whose
// kernels are then registered.
//
// Errors: InvalidArgument for another name; FailedPrecondition if there is no
// such GPU, it is older than the kernels (compute capability 8.0), or the
// program was built without CUDA.
absl::StatusOr<std::shared_ptr<Device>> OpenDevice(absl::string_view name);

}  // namespace gshard

#endif  // SERVICES_CUDA_OPS_OPEN_DEVICE_H_
