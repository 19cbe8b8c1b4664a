// The parameters that one process owns, with their optimizer state.
//
// The coordinator owns the dense parameters of a job, a worker those of its
// experts; a single process owns all of them. Each logical tensor (of a
// per-expert parameter: one expert's part) is initialised, updated, saved and
// loaded separately, so its values do not depend on which process holds it.

#ifndef SERVICES_TRAIN_PARAMETER_STORE_H_
#define SERVICES_TRAIN_PARAMETER_STORE_H_

#include <cstdint>
#include <memory>
#include <stop_token>
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

// Gradients by parameter name. Dense ones have the parameter's shape,
// per-expert ones are [experts here, ...].
using GradientList = std::vector<std::pair<std::string, Tensor>>;

int64_t BytesOf(const GradientList& gradients);

// The tensors of `gradients` in the order of `shapes`. Errors: InvalidArgument
// naming the first bad one, unless each is present once, as float32 in its
// shape.
absl::StatusOr<std::vector<Tensor>> InOrder(
    const std::vector<NamedShape>& shapes, GradientList gradients);

// The squared norm of one logical tensor's gradient.
struct SquaredNorm {
  std::string tensor;
  double value = 0.0;
};

// The sum in order of name, so that it does not depend on the placement of
// tensors.
double TotalSquaredNorm(std::vector<SquaredNorm> norms);

// Parameters and optimizer state are on a device, or on the host if it is null.
// Updates are computed there.
//
// Not thread-safe, except that tensors returned by tensors() may be used during
// Update, which replaces shared tensors and leaves those unchanged.
class ParameterStore {
 public:
  // `experts` are the global ids of the experts held here, ascending; it may be
  // empty for dense `specs`. There are no values before Load.
  // `device` outlives the store.
  ParameterStore(std::vector<ParameterSpec> specs, std::vector<int32_t> experts,
                 std::shared_ptr<const Optimizer> optimizer,
                 Device* device = nullptr);

  Device* device() const { return device_; }

  // Reads the values of a checkpoint; if it is null, sets initial ones by
  // `seed`. The optimizer state is initial also with `weights_only`. Errors:
  // those of ReadParameters, with which it can be stopped.
  absl::Status Load(const CheckpointReader* checkpoint, uint64_t seed,
                    const std::stop_token& stop = {},
                    bool weights_only = false);

  // By parameter name; per-expert ones are [experts, ...].
  const TensorMap& tensors() const { return tensors_; }
  // Their names and shapes, in the order of `specs`.
  const std::vector<NamedShape>& shapes() const { return shapes_; }

  // One per logical tensor. REQUIRES: gradients have these shapes and are where
  // the parameters are. Errors: those of the device.
  absl::StatusOr<std::vector<SquaredNorm>> SquaredNorms(
      const GradientList& gradients) const;

  // Makes update `step`. REQUIRES: as SquaredNorms. Errors, after which the
  // values may be those of neither step: those of the device; ResourceExhausted
  // if there is no memory to replace shared tensors.
  absl::Status Update(const GradientList& gradients, double gradient_scale,
                      int64_t step, double learning_rate);

  // The logical tensors held here and their optimizer state, as they are now.
  // They share buffers with the store: a later Update replaces shared tensors
  // and leaves the snapshot unchanged. Release it as
  // services/checkpoint/write_shard.h requires.
  std::vector<NamedTensor> Snapshot() const;

  int64_t bytes() const;

 private:
  // The optimizer state of a parameter. Each tensor is [parts, ...], the states
  // of its logical tensors one after the other.
  struct State {
    std::string parameter;
    int64_t parts = 1;  // logical tensors
    Dims matrix;        // the shape that the optimizer uses for each
    std::vector<NamedShape> shapes;
    std::vector<Tensor> tensors;
  };
  // A logical tensor: a whole parameter or one expert's part.
  struct Logical {
    std::string name;
    size_t state;  // index in states_
    int64_t part = 0;
    Dims dims;
  };

  // One part of a parameter, of its gradient, or of a state tensor.
  static Tensor Part(const Tensor& of, int64_t parts, int64_t part,
                     const Dims& dims);
  // Throws std::bad_alloc if there is no memory.
  void UpdateOnHost(const TensorMap& gradients, double gradient_scale,
                    int64_t step, double learning_rate);
  absl::Status UpdateOnDevice(const TensorMap& gradients, double gradient_scale,
                              int64_t step, double learning_rate);
  // Creates the states: those of the checkpoint, or zeros if it is null.
  absl::Status LoadStates(const CheckpointReader* checkpoint,
                          const std::stop_token& stop);

  std::vector<ParameterSpec> specs_;
  std::vector<int32_t> experts_;
  std::shared_ptr<const Optimizer> optimizer_;
  std::vector<NamedShape> shapes_;
  TensorMap tensors_;
  std::vector<State> states_;     // one per element of specs_
  std::vector<Logical> logical_;  // those of states_, in order
  Device* device_;                // may be null
};

// The shape of a logical tensor for an optimizer: at most a matrix. `row_dims`
// is as in ParameterSpec.
Dims OptimizerDims(const Dims& dims, int row_dims);

// The logical tensors in a checkpoint of the whole model, with optimizer state
// unless `optimizer` is null.
std::vector<TensorSpec> CheckpointTensors(const ModelConfig& config,
                                          const Optimizer* optimizer);

}  // namespace gshard

#endif  // SERVICES_TRAIN_PARAMETER_STORE_H_
