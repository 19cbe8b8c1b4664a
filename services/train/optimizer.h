// Optimizers: the update of one logical tensor.
//
// A logical tensor is a parameter as named by the single-device program, except
// that the weights of an MoE layer, [E, M, H], are E logical matrices [M, H],
// one per expert. An update reads and writes only its own tensor, so the result
// does not depend on which process holds which expert.
//
// Arithmetic is in float32, sums in double, in an order that depends on the
// shape only: equal arguments give equal bits.
//
// Adafactor (Shazeer & Stern, arXiv:1804.04235) is without momentum, as GShard
// was trained. For a matrix W [n, m] with gradient g at step t = 1, 2, ...:
//
//   b = 1 - t^-decay_exponent
//   R = b R + (1 - b) mean over columns of (g^2 + epsilon1)      [n]
//   C = b C + (1 - b) mean over rows of (g^2 + epsilon1)         [m]
//   U = g / sqrt(R C^T / mean(R))
//   U = U / max(1, RMS(U) / clipping_threshold)
//   W = W - learning_rate * max(epsilon2, RMS(W)) * U
//
// Tensors that are not matrices, or have n or m below min_dim_size_to_factor,
// keep the full second moment V instead: U = g / sqrt(V).
//
// Adam (arXiv:1412.6980) is with bias correction, and weight decay decoupled
// from the gradient (arXiv:1711.05101): W = W - learning_rate * weight_decay *
// W.

#ifndef SERVICES_TRAIN_OPTIMIZER_H_
#define SERVICES_TRAIN_OPTIMIZER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "services/tensor/tensor.h"

namespace gshard {

class DeviceRun;

// The shape of one of the state tensors that an optimizer keeps for a
// parameter.
struct NamedShape {
  std::string name;  // "row", "column", "second", "first"
  Dims dims;
};

// Thread-safe: holds options only. See MakeOptimizer() in job_options.h.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // The float32 state of a tensor of shape `dims`, in the order that Update
  // expects. Initially zero.
  virtual std::vector<NamedShape> StateShapes(
      absl::Span<const int64_t> dims) const = 0;

  // Makes update number `step` (the first is 1) of a tensor of shape `dims`:
  // changes `weight` and `state` in place. `gradient` is multiplied by
  // `gradient_scale` (for clipping and averaging) when it is read. Values that
  // are not finite are not detected; check the gradient's norm first.
  //
  // REQUIRES: sizes match `dims` and StateShapes(dims); step >= 1.
  virtual void Update(absl::Span<const int64_t> dims, absl::Span<float> weight,
                      absl::Span<const float> gradient, double gradient_scale,
                      absl::Span<const absl::Span<float>> state, int64_t step,
                      double learning_rate) const = 0;

  // The same on a device, for `parts` consecutive logical tensors within each
  // of the given tensors: queues the updates in `run`. Errors: those of
  // DeviceRun::Update.
  virtual absl::Status Update(DeviceRun& run, int64_t parts,
                              absl::Span<const int64_t> dims, Tensor& weight,
                              const Tensor& gradient, double gradient_scale,
                              absl::Span<Tensor> state, int64_t step,
                              double learning_rate) const = 0;
};

// The number of elements in StateShapes(dims). Training keeps these, the weight
// and the sum of its gradients: with Adam, four numbers per weight. A double,
// as the sizes of a model that is only planned may exceed an integer.
double StateNumbers(const Optimizer& optimizer, absl::Span<const int64_t> dims);

}  // namespace gshard

#endif  // SERVICES_TRAIN_OPTIMIZER_H_
