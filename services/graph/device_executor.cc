#include "services/graph/device_executor.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "services/base/status_macros.h"

namespace gshard {

DeviceExecutor::DeviceExecutor(Program program, Device* device,
                               const std::vector<std::string>& resident)
    : device_(device),
      executor_(
          device == nullptr ? std::move(program) : device->Prepare(program),
          BackendOf(device)) {
  for (const auto& output : executor_.program().outputs) {
    stays_.push_back(std::any_of(
        resident.begin(), resident.end(), [&](const std::string& prefix) {
          return absl::StartsWith(output.first, prefix);
        }));
  }
}

absl::StatusOr<std::vector<Tensor>> DeviceExecutor::Run(
    TensorMap inputs, const TensorMap& parameters, RunOptions options) const {
  if (device_ == nullptr) {
    return executor_.Run(std::move(inputs), parameters, options);
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<DeviceRun> run, device_->BeginRun());
  for (auto& [name, input] : inputs) {
    // Integers are read on the host. One that is on the device may be
    // overwritten, unless the run holds it, too.
    if (!input.on_host() || input.type() == ElementType::kInt32 ||
        input.type() == ElementType::kInt64) {
      continue;
    }
    // Copy once, not once per kernel.
    ASSIGN_OR_RETURN(input, run->ToDevice(input));
  }
  options.context = std::move(options.context).With<DeviceRun>(run.get());
  ASSIGN_OR_RETURN(std::vector<Tensor> outputs,
                   executor_.Run(std::move(inputs), parameters, options));
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (stays_[i]) continue;
    ASSIGN_OR_RETURN(outputs[i], run->ToHost(outputs[i]));
  }
  RETURN_IF_ERROR(run->Finish());
  return outputs;
}

}  // namespace gshard
