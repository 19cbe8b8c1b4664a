// The parameters that one process owns, with their optimizer state.
//
// The coordinator owns the dense parameters of a job, a worker those of its
// experts; a single process owns them all. Each logical tensor (of a
// per-expert parameter: one expert's part) is initialised, updated, saved and
// loaded by itself, so that what becomes of it does not depend on who has it.

#ifndef SERVICES_TRAIN_PARAMETER_STORE_H_
#define SERVICES_TRAIN_PARAMETER_STORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/checkpoint/checkpoint.h"
#include "services/graph/device.h"
#include "services/graph/executor.h"
#include "services/model/parameters.h"
#include "services/train/optimizer.h"

namespace gshard {

// Gradients by parameter: dense ones as the parameter, per-expert ones
// [experts here, ...].
using GradientList = std::vector<std::pair<std::string, Tensor>>;

// The tensors of `gradients` in the order of `shapes`. Errors: InvalidArgument
// naming the first, unless each is there once, as float32 in its shape.
absl::StatusOr<std::vector<Tensor>> InOrder(
    const std::vector<NamedShape>& shapes, GradientList gradients);

// The squared norm of one logical tensor's gradient.
struct SquaredNorm {
  std::string tensor;
  double value = 0.0;
};

// Sum in order of name: the same whoever had which.
double TotalSquaredNorm(std::vector<SquaredNorm> norms);

// Parameters and optimizer state are on a device, or where that is null on the
// host; updates are made where they are.
//
// Not thread-safe; what tensors() returned may be used during Update, which
// then leaves it as it was and replaces it.
class ParameterStore {
 public:
  // `experts` are the global ids of the experts held here, ascending; for
  // dense `specs` they may be empty. There are no values until Initialize or
  // Load. `device` outlives the store.
  ParameterStore(std::vector<ParameterSpec> specs, std::vector<int32_t> experts,
                 std::shared_ptr<const Optimizer> optimizer,
                 Device* device = nullptr);

  Device* device() const { return device_; }

  // Errors: those of InitialValue and CopyToDevice.
  absl::Status Initialize(uint64_t seed);

  // Errors: those of CheckpointReader::Read and CopyToDevice.
  absl::Status Load(const CheckpointReader& checkpoint);

  // By parameter; per-expert ones are [experts, ...].
  const TensorMap& tensors() const { return tensors_; }
  // The same, names and shapes alone, in order of `specs`.
  const std::vector<NamedShape>& shapes() const { return shapes_; }

  // One per logical tensor. REQUIRES: gradients in these shapes, where the
  // parameters are. Errors: those of the device.
  absl::StatusOr<std::vector<SquaredNorm>> SquaredNorms(
      const GradientList& gradients) const;

  // Makes update `step`. REQUIRES: the same. Errors: those of the device;
  // values may then be of neither step.
  absl::Status Update(const GradientList& gradients, double gradient_scale,
                      int64_t step, double learning_rate);

  // The logical tensors held here with their optimizer state, as they are now,
  // sharing buffers with the store: an Update meanwhile replaces what is shared
  // and leaves the snapshot as it was. It is let go as
  // services/checkpoint/write_shard.h says.
  std::vector<NamedTensor> Snapshot() const;

  int64_t bytes() const;

 private:
  // What the optimizer keeps of a parameter: [experts here, ...], as its
  // logical tensors have it one by one.
  struct State {
    std::string parameter;
    int64_t parts = 1;  // logical tensors
    Dims matrix;        // what the optimizer takes each for
    std::vector<NamedShape> shapes;
    std::vector<Tensor> tensors;
  };
  // A logical tensor: the whole of a parameter or one expert's part.
  struct Logical {
    std::string name;
    size_t state;  // of states_
    int64_t part = 0;
    Dims dims;
  };

  // A part of a parameter, its gradient, or a tensor of its state.
  static Tensor Part(const Tensor& of, int64_t parts, int64_t part,
                     const Dims& dims);
  absl::Status UpdateOnDevice(const TensorMap& gradients, double gradient_scale,
                              int64_t step, double learning_rate);
  // Of zeros, or what `read` gives for a logical tensor and one of its state.
  absl::Status MakeStates(const std::function<absl::StatusOr<Tensor>(
                              const Logical&, const NamedShape&)>& read);

  std::vector<ParameterSpec> specs_;
  std::vector<int32_t> experts_;
  std::shared_ptr<const Optimizer> optimizer_;
  std::vector<NamedShape> shapes_;
  TensorMap tensors_;
  std::vector<State> states_;     // of specs_
  std::vector<Logical> logical_;  // of states_, in their order
  Device* device_;                // may be null
};

// The dims of a logical tensor as an optimizer takes it: a matrix at most.
// `row_dims` as in ParameterSpec.
Dims OptimizerDims(const Dims& dims, int row_dims);

// The logical tensors of a whole model's checkpoint.
std::vector<TensorSpec> CheckpointTensors(const ModelConfig& config,
                                          const Optimizer* optimizer);

}  // namespace gshard

#endif  // SERVICES_TRAIN_PARAMETER_STORE_H_
