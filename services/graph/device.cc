#include "services/graph/device.h"

#include <cstring>

#include "services/base/status_macros.h"

namespace gshard {

Backend BackendOf(const Device* device) {
  return device == nullptr ? Backend::kCpu : device->backend();
}

absl::StatusOr<Tensor> CopyToDevice(Device& device, const Tensor& tensor) {
  ASSIGN_OR_RETURN(const std::unique_ptr<DeviceRun> run, device.BeginRun());
  ASSIGN_OR_RETURN(Tensor copy, run->ToDevice(tensor));
  RETURN_IF_ERROR(run->Finish());
  return copy;
}

absl::StatusOr<Tensor> CopyToHost(Device& device, const Tensor& tensor) {
  ASSIGN_OR_RETURN(const std::unique_ptr<DeviceRun> run, device.BeginRun());
  ASSIGN_OR_RETURN(const Tensor copy, run->ToHost(tensor));
  RETURN_IF_ERROR(run->Finish());
  ASSIGN_OR_RETURN(Tensor own, AllocateTensor(copy.type(), copy.dims()));
  std::memcpy(own.raw(), copy.raw(), copy.bytes());
  return own;
}

}  // namespace gshard
