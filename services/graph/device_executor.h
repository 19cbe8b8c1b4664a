// DeviceExecutor: an Executor whose program runs on a device, or on the CPU if
// there is none.
//
// Whoever runs it has inputs and outputs on the host, except for outputs that
// stay on the device to be inputs of a later run: saved values, caches.

#ifndef SERVICES_GRAPH_DEVICE_EXECUTOR_H_
#define SERVICES_GRAPH_DEVICE_EXECUTOR_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/graph/device.h"
#include "services/graph/executor.h"

namespace gshard {

// Immutable; may run on several threads at once.
class DeviceExecutor {
 public:
  // `device` outlives the executor; null: the CPU. Outputs whose names begin
  // with one of `resident` stay on the device.
  DeviceExecutor(Program program, Device* device,
                 const std::vector<std::string>& resident = {});

  // As Executor::status(): Unimplemented if the device lacks a kernel.
  const absl::Status& status() const { return executor_.status(); }

  // As Executor::Run. Inputs are on the host or, of floating-point types, on
  // the device; parameters should be on the device, else every run copies them.
  // Additional errors: those of the device.
  absl::StatusOr<std::vector<Tensor>> Run(TensorMap inputs,
                                          const TensorMap& parameters,
                                          RunOptions options = {}) const;

  // The same in `run`, which the caller finishes: until then, floating-point
  // outputs on the host have no values. Null if there is no device().
  absl::StatusOr<std::vector<Tensor>> RunIn(DeviceRun* run, TensorMap inputs,
                                            const TensorMap& parameters,
                                            RunOptions options = {}) const;

  // As of Executor; the program is Device::Prepare's.
  const WeightForms& weight_forms() const { return executor_.weight_forms(); }
  const Program& program() const { return executor_.program(); }
  Device* device() const { return device_; }

 private:
  Device* const device_;  // may be null
  const Executor executor_;
  std::vector<bool> stays_;  // by output
};

// CastToBf16 of parameters that are on the host or on `device`, which may be
// null: each stays where it is. Errors: those of the device; ResourceExhausted
// if the host has no memory.
absl::Status CastToBf16(const WeightForms& weights, Device* device,
                        TensorMap& parameters);

}  // namespace gshard

#endif  // SERVICES_GRAPH_DEVICE_EXECUTOR_H_
