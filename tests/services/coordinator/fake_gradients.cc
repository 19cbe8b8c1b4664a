#include "tests/services/coordinator/fake_gradients.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "services/model/parameters.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

uint64_t NameSeed(const std::string& name) {
  uint64_t seed = 1469598103934665603u;
  for (const char c : name) seed = (seed ^ uint8_t(c)) * 1099511628211u;
  return seed;
}

// Adds the gradients of a logical tensor over `count` microbatches to `sum`.
void AddGradients(const std::string& name, int64_t step, int64_t count,
                  Tensor sum) {
  for (int32_t m = 0; m < count; ++m) {
    const Tensor gradient = FakeGradient(name, sum.dims(), step, m);
    for (int64_t i = 0; i < sum.size(); ++i) sum.f32()[i] += gradient.f32()[i];
  }
}

}  // namespace

GradientList SummedGradients(const ParameterStore& store, int64_t step,
                             int64_t count) {
  const std::vector<NamedTensor> held = store.Snapshot();
  GradientList gradients;
  for (const NamedShape& shape : store.shapes()) {
    Tensor sum = Tensor::Zeros(ElementType::kFloat32, shape.dims);
    int64_t row = 0;
    for (const NamedTensor& logical : held) {
      if (logical.name == shape.name) {
        AddGradients(logical.name, step, count, sum);
      } else if (absl::StartsWith(logical.name, shape.name + "/")) {
        AddGradients(logical.name, step, count,
                     sum.Rows(row, row + 1).Reshaped(logical.tensor.dims()));
        ++row;
      }
    }
    gradients.emplace_back(shape.name, std::move(sum));
  }
  return gradients;
}

Tensor FakeGradient(const std::string& name, const Dims& dims, int64_t step,
                    int32_t microbatch) {
  return RandomTensor(dims, NameSeed(name) + 1000 * step + microbatch);
}

v1::MicrobatchStats FakeStats(const ModelConfig& model, int64_t step,
                              int32_t microbatch) {
  v1::MicrobatchStats stats;
  stats.set_target_tokens(10 + microbatch);
  stats.set_sentences(2);
  stats.set_loss_sum(30.0 / static_cast<double>(step));
  stats.set_logit_magnitude(8.5);
  for (size_t l = 0; l < MoeLayerNames(model).size(); ++l) {
    v1::LayerStats* const layer = stats.add_layers();
    layer->set_balance_loss_sum(1.5);
    layer->set_groups(1);
    layer->set_gate_logit_magnitude(2.5);
    layer->set_routed_first(8);
    layer->set_routed_second(8);
    layer->set_overflow_first(1);
    layer->set_overflow_second(3);
    for (int64_t e = 0; e < model.experts; ++e) layer->add_expert_rows(4);
  }
  return stats;
}

v1::MicrobatchStats FakeValidationStats(const ModelConfig& model, int64_t step,
                                        int32_t microbatch) {
  v1::MicrobatchStats stats = FakeStats(model, step, microbatch);
  stats.set_target_tokens(4);
  stats.set_loss_sum(32.0 / static_cast<double>(step) +
                     (microbatch == 0 ? 1.0 : 0.0));
  return stats;
}

}  // namespace gshard
