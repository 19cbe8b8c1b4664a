// Device: memory that is not the host's, and whose kernels compute there.
//
// Kernels of a device's back end take operands that are on the host or on the
// device and leave results on the device, integers on the host, for which they
// may wait. Work is queued, in order, in a DeviceRun, which the RunContext
// brings:
//
//   std::unique_ptr<DeviceRun> run = *device.BeginRun();
//   outputs = executor.Run(inputs, parameters,
//                          {.context =
//                          RunContext().With<DeviceRun>(run.get())});
//   Tensor y = *run->ToHost(outputs[0]);
//   RETURN_IF_ERROR(run->Finish());  // y has its values now
//
// services/cuda/ops opens those of CUDA; tests have one of host memory.

#ifndef SERVICES_GRAPH_DEVICE_H_
#define SERVICES_GRAPH_DEVICE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/graph/op.h"
#include "services/ops/adafactor_step.h"
#include "services/ops/adam_step.h"
#include "services/tensor/tensor.h"

namespace gshard {

// What one caller has a device do. Used by the thread that began it, which has
// no run of another device meanwhile. Destruction waits for what is queued.
class DeviceRun {
 public:
  virtual ~DeviceRun() = default;

  // A host tensor's copy for kernels of this run; one that is on the device is
  // returned as it is. Either lives until Finish() at least. Errors:
  // ResourceExhausted if the device has no memory for it.
  virtual absl::StatusOr<Tensor> ToDevice(const Tensor& tensor) = 0;

  // A copy of a device's tensor, whose values are there after Finish(); one
  // that is on the host is returned as it is. Errors: ResourceExhausted.
  virtual absl::StatusOr<Tensor> ToHost(const Tensor& tensor) = 0;

  // Waits for what is queued. Errors: that of the first kernel or copy that
  // failed.
  virtual absl::Status Finish() = 0;

  // What training does outside of programs, queued as kernels are. Tensors are
  // float32, on the device, and of sizes that fit; a run may be given again
  // what it has changed. The order of sums depends on sizes only. Errors, of
  // all: ResourceExhausted; those of Device::status().

  virtual absl::StatusOr<Tensor> Copy(const Tensor& x) = 0;
  virtual absl::StatusOr<Tensor> RoundToBf16(const Tensor& x) = 0;
  // sum += x
  virtual absl::Status Add(const Tensor& x, Tensor& sum) = 0;
  // Of each of the `parts` of x that follow each other. Waits for what is
  // queued.
  virtual absl::StatusOr<std::vector<double>> SumsOfSquares(const Tensor& x,
                                                            int64_t parts) = 0;
  // Steps in place.
  virtual absl::Status Update(const AdamStep& step, const Tensor& gradient,
                              Tensor& weight, Tensor& first,
                              Tensor& second) = 0;
  // Of `parts` tensors of shape `dims`; `state` as Optimizer::StateShapes has
  // it.
  virtual absl::Status Update(const AdafactorStep& step, int64_t parts,
                              absl::Span<const int64_t> dims,
                              const Tensor& gradient, Tensor& weight,
                              absl::Span<Tensor> state) = 0;
};

// Thread-safe. Outlives its runs and tensors.
class Device {
 public:
  virtual ~Device() = default;

  // Whose kernels compute here.
  virtual Backend backend() const = 0;

  // As flags name it: "cuda:0".
  virtual std::string name() const = 0;

  // Memory that was free when it was opened.
  virtual int64_t memory_bytes() const = 0;

  // Unavailable once it computes nothing for this process any more, which has
  // to be started anew: a kernel has failed. All runs then end with it.
  virtual absl::Status status() const = 0;

  // The program as the kernels here do it best: the same inputs, parameters and
  // outputs.
  virtual Program Prepare(const Program& program) const { return program; }

  // Runs go on beside each other. A tensor of one run may be used by another
  // when the first has finished. Errors: those of status().
  virtual absl::StatusOr<std::unique_ptr<DeviceRun>> BeginRun() = 0;
};

// A host tensor's copy on `device`, complete. Errors: those of DeviceRun.
absl::StatusOr<Tensor> CopyToDevice(Device& device, const Tensor& tensor);
// A device's tensor's copy on the host, complete, in memory that is nobody
// else's. Errors: those of DeviceRun.
absl::StatusOr<Tensor> CopyToHost(Device& device, const Tensor& tensor);

}  // namespace gshard

#endif  // SERVICES_GRAPH_DEVICE_H_
