// Device: memory other than the host's, with kernels that compute there.
//
// Kernels of a device's back end take operands on the host or on the device and
// leave results on the device, but integers on the host, for which they may
// wait. Work is queued, in order, in a DeviceRun, which is passed in the
// RunContext:
//
//   std::unique_ptr<DeviceRun> run = *device.BeginRun();
//   outputs = executor.Run(inputs, parameters,
//                          {.context =
//                          RunContext().With<DeviceRun>(run.get())});
//   Tensor y = *run->ToHost(outputs[0]);
//   RETURN_IF_ERROR(run->Finish());  // y has its values now
//
// services/cuda/ops opens CUDA devices; tests have one of host memory.

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
#include "services/ops/top_tokens.h"
#include "services/tensor/tensor.h"

namespace gshard {

// `count` elements, from index `from` of one tensor to index `to` of another.
struct ElementRange {
  int64_t from = 0;
  int64_t to = 0;
  int64_t count = 0;
};

// One caller's work on a device. Used only by the thread that began it, which
// has no run of another device meanwhile. Destruction waits for queued work.
class DeviceRun {
 public:
  virtual ~DeviceRun() = default;

  // A copy of a host tensor for kernels of this run; a device tensor is
  // returned as it is. Both live at least until Finish(). Errors:
  // ResourceExhausted if the device has no memory for it.
  virtual absl::StatusOr<Tensor> ToDevice(const Tensor& tensor) = 0;

  // A host copy of a device tensor, whose values are valid after Finish(); a
  // host tensor is returned as it is. Errors: ResourceExhausted.
  virtual absl::StatusOr<Tensor> ToHost(const Tensor& tensor) = 0;

  // Waits for queued work. Errors: that of the first kernel or copy that
  // failed.
  virtual absl::Status Finish() = 0;

  // A tensor of the device, contents undefined. Errors: ResourceExhausted.
  virtual absl::StatusOr<Tensor> NewTensor(ElementType type, Dims dims) = 0;

  // Copies ranges of elements of `from` to `to`, queued like a kernel. Both are
  // float32 and on the device; ranges lie within them and do not overlap in
  // `to`. Errors: ResourceExhausted; those of Device::status().
  virtual absl::Status CopyRanges(const Tensor& from,
                                  absl::Span<const ElementRange> ranges,
                                  Tensor& to) = 0;

  // TopTokensOfRows (services/ops/top_tokens.h) of logits on the device, except
  // for the order of the softmax's sum. Waits for queued work. Errors:
  // ResourceExhausted; those of Device::status().
  virtual absl::StatusOr<std::vector<std::vector<TokenScore>>> TopTokensOfRows(
      const Tensor& logits, absl::Span<const TokensWanted> wanted) = 0;

  // Training work outside of programs, queued like kernels. Tensors are
  // float32, on the device, and of matching sizes; results may be passed to the
  // same run again. The order of sums depends only on sizes. Errors of all:
  // ResourceExhausted; those of Device::status().

  virtual absl::StatusOr<Tensor> Copy(const Tensor& x) = 0;
  virtual absl::StatusOr<Tensor> RoundToBf16(const Tensor& x) = 0;
  // sum += x
  virtual absl::Status Add(const Tensor& x, Tensor& sum) = 0;
  // Sum of squares of each of `parts` equal consecutive parts of x. Waits for
  // queued work.
  virtual absl::StatusOr<std::vector<double>> SumsOfSquares(const Tensor& x,
                                                            int64_t parts) = 0;
  // Optimizer steps, in place.
  virtual absl::Status Update(const AdamStep& step, const Tensor& gradient,
                              Tensor& weight, Tensor& first,
                              Tensor& second) = 0;
  // For `parts` tensors of shape `dims`; `state` as in Optimizer::StateShapes.
  virtual absl::Status Update(const AdafactorStep& step, int64_t parts,
                              absl::Span<const int64_t> dims,
                              const Tensor& gradient, Tensor& weight,
                              absl::Span<Tensor> state) = 0;
};

// Thread-safe. Outlives its runs and tensors.
class Device {
 public:
  virtual ~Device() = default;

  // The back end whose kernels run here.
  virtual Backend backend() const = 0;

  // The name in flags: "cuda:0".
  virtual std::string name() const = 0;

  // N of "cuda:N"; -1 for what is not a GPU.
  virtual int gpu() const = 0;

  // Bytes that were free when the device was opened.
  virtual int64_t memory_bytes() const = 0;

  // Unavailable once a kernel has failed: the device then computes nothing more
  // for this process, which must be restarted. All runs then end with this
  // error.
  virtual absl::Status status() const = 0;

  // The program rewritten for the kernels of this device: the same inputs,
  // parameters and outputs.
  virtual Program Prepare(const Program& program) const { return program; }

  // Runs execute concurrently. A tensor of one run may be used by another once
  // the first has finished. Errors: those of status().
  virtual absl::StatusOr<std::unique_ptr<DeviceRun>> BeginRun() = 0;
};

// The back end of what runs on `device`; the CPU's if null.
Backend BackendOf(const Device* device);

// A complete copy of a host tensor on `device`. Errors: those of DeviceRun.
absl::StatusOr<Tensor> CopyToDevice(Device& device, const Tensor& tensor);
// A complete host copy of a device tensor, in memory of its own. Errors: those
// of DeviceRun.
absl::StatusOr<Tensor> CopyToHost(Device& device, const Tensor& tensor);

}  // namespace gshard

#endif  // SERVICES_GRAPH_DEVICE_H_
