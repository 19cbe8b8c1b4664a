// An optimizer for which there is no memory.

#ifndef TESTS_SERVICES_TRAIN_HUNGRY_OPTIMIZER_H_
#define TESTS_SERVICES_TRAIN_HUNGRY_OPTIMIZER_H_

#include <new>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "services/train/optimizer.h"

namespace gshard {

// More elements than any machine has memory for.
inline const Dims kHugeDims = {int64_t{1} << 16, int64_t{1} << 40};

// Its updates throw, as copies of tensors do when memory runs out.
class HungryOptimizer final : public Optimizer {
 public:
  explicit HungryOptimizer(std::vector<NamedShape> state = {})
      : state_(std::move(state)) {}

  std::vector<NamedShape> StateShapes(
      absl::Span<const int64_t> /*dims*/) const override {
    return state_;
  }
  void Update(absl::Span<const int64_t> /*dims*/, absl::Span<float> /*weight*/,
              absl::Span<const float> /*gradient*/, double /*gradient_scale*/,
              absl::Span<const absl::Span<float>> /*state*/, int64_t /*step*/,
              double /*learning_rate*/) const override {
    throw std::bad_alloc();
  }
  absl::Status Update(DeviceRun& /*run*/, int64_t /*parts*/,
                      absl::Span<const int64_t> /*dims*/, Tensor& /*weight*/,
                      const Tensor& /*gradient*/, double /*gradient_scale*/,
                      absl::Span<Tensor> /*state*/, int64_t /*step*/,
                      double /*learning_rate*/) const override {
    return absl::UnimplementedError("no device");
  }

 private:
  const std::vector<NamedShape> state_;
};

}  // namespace gshard

#endif  // TESTS_SERVICES_TRAIN_HUNGRY_OPTIMIZER_H_
