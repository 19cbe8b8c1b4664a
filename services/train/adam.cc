#include <cmath>

#include "services/base/check.h"
#include "services/graph/device.h"
#include "services/ops/adam_step.h"
#include "services/ops/simd.h"
#include "services/train/optimizer_kinds.h"

namespace gshard {
namespace {

GSHARD_SIMD void UpdateAll(const AdamStep step, const float* gradient,
                           int64_t size, float* weight, float* first,
                           float* second) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    step.Update(gradient[i], weight[i], first[i], second[i]);
  }
}

class Adam final : public Optimizer {
 public:
  explicit Adam(const AdamConfig& config) : config_(config) {}

  std::vector<NamedShape> StateShapes(
      absl::Span<const int64_t> dims) const override {
    const Dims same(dims.begin(), dims.end());
    return {{"first", same}, {"second", same}};
  }

  void Update(absl::Span<const int64_t> dims, absl::Span<float> weight,
              absl::Span<const float> gradient, double gradient_scale,
              absl::Span<const absl::Span<float>> state, int64_t step,
              double learning_rate) const override {
    CHECK(weight.size() == static_cast<size_t>(NumElements(dims)));
    CHECK(gradient.size() == weight.size() && state.size() == 2);
    CHECK(state[0].size() == weight.size() && state[1].size() == weight.size());
    UpdateAll(Numbers(gradient_scale, step, learning_rate), gradient.data(),
              weight.size(), weight.data(), state[0].data(), state[1].data());
  }

  absl::Status Update(DeviceRun& run, int64_t, absl::Span<const int64_t>,
                      Tensor& weight, const Tensor& gradient,
                      double gradient_scale, absl::Span<Tensor> state,
                      int64_t step, double learning_rate) const override {
    return run.Update(Numbers(gradient_scale, step, learning_rate), gradient,
                      weight, state[0], state[1]);
  }

 private:
  AdamStep Numbers(double gradient_scale, int64_t step,
                   double learning_rate) const {
    CHECK(step >= 1);
    const double t = static_cast<double>(step);
    const auto narrow = [](double x) { return static_cast<float>(x); };
    return {
        .gradient_scale = narrow(gradient_scale),
        .beta1 = narrow(config_.beta1),
        .keep1 = narrow(1.0 - config_.beta1),
        .beta2 = narrow(config_.beta2),
        .keep2 = narrow(1.0 - config_.beta2),
        .rate = narrow(learning_rate / (1.0 - std::pow(config_.beta1, t))),
        .inverse_root =
            narrow(1.0 / std::sqrt(1.0 - std::pow(config_.beta2, t))),
        .epsilon = narrow(config_.epsilon),
        .keep = narrow(1.0 - learning_rate * config_.weight_decay),
    };
  }

  const AdamConfig config_;
};

}  // namespace

std::unique_ptr<Optimizer> MakeAdam(const AdamConfig& config) {
  return std::make_unique<Adam>(config);
}

}  // namespace gshard
