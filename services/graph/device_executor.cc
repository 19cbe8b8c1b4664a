#include "services/graph/device_executor.h"

#include <algorithm>
#include <memory>
#include <new>
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
  std::unique_ptr<DeviceRun> run;
  if (device_ != nullptr) {
    ASSIGN_OR_RETURN(run, device_->BeginRun());
  }
  ASSIGN_OR_RETURN(std::vector<Tensor> outputs,
                   RunIn(run.get(), std::move(inputs), parameters, options));
  if (run != nullptr) RETURN_IF_ERROR(run->Finish());
  return outputs;
}

absl::StatusOr<std::vector<Tensor>> DeviceExecutor::RunIn(
    DeviceRun* run, TensorMap inputs, const TensorMap& parameters,
    RunOptions options) const {
  if (run == nullptr) {
    return executor_.Run(std::move(inputs), parameters, options);
  }
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
  options.context = std::move(options.context).With<DeviceRun>(run);
  ASSIGN_OR_RETURN(std::vector<Tensor> outputs,
                   executor_.Run(std::move(inputs), parameters, options));
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (stays_[i]) continue;
    ASSIGN_OR_RETURN(outputs[i], run->ToHost(outputs[i]));
  }
  return outputs;
}

absl::Status CastToBf16(const WeightForms& weights, Device* device,
                        TensorMap& parameters) {
  try {
    CastToBf16(weights, parameters);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("no memory for weights in bfloat16");
  }
  std::unique_ptr<DeviceRun> run;
  for (auto& [name, tensor] : parameters) {
    const auto form = weights.find(name);
    if (tensor.on_host() || tensor.type() == ElementType::kBFloat16 ||
        form == weights.end() || form->second.type != ElementType::kBFloat16) {
      continue;
    }
    if (run == nullptr) {
      ASSIGN_OR_RETURN(run, device->BeginRun());
    }
    ASSIGN_OR_RETURN(tensor, run->RoundToBf16(tensor));
  }
  return run == nullptr ? absl::OkStatus() : run->Finish();
}

}  // namespace gshard
