// The parameters that one process owns, with their optimizer state.
//
// The coordinator owns the dense parameters of a job, a worker those of its
// experts; a single process owns them all. Each logical tensor (of a
// per-expert parameter: one expert's part) is initialised, updated, saved and
// loaded by itself, so that what becomes of it does not depend on who has it.

#ifndef SERVICES_TRAIN_PARAMETER_STORE_H_
#define SERVICES_TRAIN_PARAMETER_STORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/checkpoint/checkpoint.h"
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

// Not thread-safe; what tensors() returned may be used during Update, which
// then leaves it as it was and replaces it.
class ParameterStore {
 public:
  // `experts` are the global ids of the experts held here, ascending; for
  // dense `specs` they may be empty. There are no values until Initialize or
  // Load.
  ParameterStore(std::vector<ParameterSpec> specs, std::vector<int32_t> experts,
                 std::shared_ptr<const Optimizer> optimizer);

  // Errors: those of InitialValue.
  absl::Status Initialize(uint64_t seed);

  // Errors: those of CheckpointReader::Read.
  absl::Status Load(const CheckpointReader& checkpoint);

  // By parameter; per-expert ones are [experts, ...].
  const TensorMap& tensors() const { return tensors_; }
  // The same, names and shapes alone, in order of `specs`.
  const std::vector<NamedShape>& shapes() const { return shapes_; }

  // One per logical tensor. REQUIRES: gradients in these shapes.
  std::vector<SquaredNorm> SquaredNorms(const GradientList& gradients) const;

  // Makes update `step`. REQUIRES: gradients in these shapes.
  void Update(const GradientList& gradients, double gradient_scale,
              int64_t step, double learning_rate);

  // The logical tensors held here with their optimizer state, as they are now,
  // sharing buffers with the store: an Update meanwhile replaces what is shared
  // and leaves the snapshot as it was. It is let go as
  // services/checkpoint/write_shard.h says.
  std::vector<NamedTensor> Snapshot() const;

  int64_t bytes() const;

 private:
  // A logical tensor: the whole of a parameter or one expert's part.
  struct Logical {
    std::string name;
    std::string parameter;
    int64_t row = -1;  // of a per-expert parameter
    Dims dims;
    Dims matrix;  // what the optimizer takes it for
    std::vector<Tensor> state;
  };

  Tensor View(const Logical& logical, const Tensor& of) const;

  std::vector<ParameterSpec> specs_;
  std::vector<int32_t> experts_;
  std::shared_ptr<const Optimizer> optimizer_;
  std::vector<NamedShape> shapes_;
  TensorMap tensors_;
  std::vector<Logical> logical_;
};

// The dims of a logical tensor as an optimizer takes it: a matrix at most.
// `row_dims` as in ParameterSpec.
Dims OptimizerDims(const Dims& dims, int row_dims);

// The logical tensors of a whole model's checkpoint.
std::vector<TensorSpec> CheckpointTensors(const ModelConfig& config,
                                          const Optimizer* optimizer);

}  // namespace gshard

#endif  // SERVICES_TRAIN_PARAMETER_STORE_H_
