// One MoE layer [T, M] as a program with gradients, annotated like the model's
// layers, with its parameters and inputs.

#ifndef TESTS_SERVICES_MOE_PARTITION_LAYER_H_
#define TESTS_SERVICES_MOE_PARTITION_LAYER_H_

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "services/base/status_macros.h"
#include "services/graph/executor.h"
#include "services/graph/gradient.h"
#include "services/moe/graph_ops.h"
#include "services/sharding/annotation.h"
#include "tests/testing/tensors.h"

namespace gshard {

struct MoeLayer {
  int64_t T = 48, M = 6, H = 10, E = 8;
  GatingOptions gating = {.group_size = 4};
  bool bias = false;
  double dropout = 0.0;
  bool symbolic_tokens = false;
  // Axes of the tokens, the experts, and of the experts' inner and outer width;
  // "" for none.
  std::string tokens, experts, width, outer_width;
};

inline absl::StatusOr<Program> MoeLayerProgram(const MoeLayer& layer) {
  RegisterMoeOps();
  const Dim T = layer.symbolic_tokens ? Dim::Symbol("T") : Dim(layer.T);
  const auto [M, H, E] = std::tuple(layer.M, layer.H, layer.E);
  Builder b("layer");
  const auto split = [&](ValueId value, int dim, const std::string& axis) {
    return axis.empty() ? value : Split(b, value, dim, axis);
  };
  const ValueId x =
      split(b.Input("x", {ElementType::kFloat32, {T, M}}), 0, layer.tokens);
  const ValueId valid = b.Input("valid", {ElementType::kInt32, {T}});
  const ValueId key = b.Input("key", {ElementType::kInt64, {}});
  const ValueId gate_weights = Replicate(b, b.Parameter("gate", {M, E}));
  const GateValues gate = GateTokens(b, b.Einsum("tm,me->te", x, gate_weights),
                                     valid, key, layer.gating, 3);
  const DispatchValues dispatched = DispatchTokens(b, x, gate, E, layer.gating);
  const ValueId sizes = dispatched.group_sizes;
  const ValueId rows = split(dispatched.rows, 0, layer.experts);
  std::vector<ValueId> parameters = {gate_weights};
  std::vector<std::string> names = {"gate"};
  // `width` and `outer` are the dimensions of the inner and outer width, or 0.
  const auto parameter = [&](const char* name, Shape shape, int width,
                             int outer) {
    ValueId p = split(b.Parameter(name, std::move(shape)), 0, layer.experts);
    if (width > 0) p = split(p, width, layer.width);
    if (outer > 0) p = split(p, outer, layer.outer_width);
    parameters.push_back(p);
    names.push_back(name);
    return p;
  };
  ValueId h = b.RaggedDot(rows, parameter("wi", {E, M, H}, 2, 1), sizes);
  if (layer.bias) {
    h = b.RaggedBiasAdd(h, parameter("bi", {E, H}, 1, 0), sizes);
  }
  h = b.Relu(h);
  if (layer.dropout > 0.0) {
    h = b.AddOne("dropout_rows", {h, dispatched.row_source, key},
                 {{"rate", layer.dropout}, {"salt", int64_t{9}}});
  }
  ValueId y = b.RaggedDot(h, parameter("wo", {E, H, M}, 1, 2), sizes);
  if (layer.bias) {
    y = b.RaggedBiasAdd(y, parameter("bo", {E, M}, 0, 1), sizes);
  }
  y = CombineRows(b, y, dispatched.row_source, gate.weight);
  const ValueId losses = b.Add(gate.balance_loss, b.Scale(gate.z_loss, 0.01));
  const ValueId loss = b.Add(b.ReduceSum(b.Multiply(y, y), {0, 1}), losses);
  parameters.push_back(x);
  names.push_back("x");
  ASSIGN_OR_RETURN(const std::vector<ValueId> gradients,
                   AddGradients(b, loss, parameters));
  b.Output("y", y);
  b.Output("losses", losses);
  b.Output("kept", gate.kept_count);
  b.Output("overflow", gate.overflow_count);
  for (size_t i = 0; i < names.size(); ++i) {
    b.Output("gradient/" + names[i], gradients[i]);
  }
  ASSIGN_OR_RETURN(const Program program, std::move(b).Finish());
  return Pruned(program);
}

inline TensorMap MoeLayerParameters(const MoeLayer& layer) {
  const auto [M, H, E] = std::tuple(layer.M, layer.H, layer.E);
  TensorMap parameters = {{"gate", RandomTensor({M, E}, 1)},
                          {"wi", RandomTensor({E, M, H}, 2)},
                          {"wo", RandomTensor({E, H, M}, 3)}};
  if (layer.bias) {
    parameters["bi"] = RandomTensor({E, H}, 4);
    parameters["bo"] = RandomTensor({E, M}, 5);
  }
  return parameters;
}

// Every seventh token and the last fifth of the tokens are padding.
inline TensorMap MoeLayerInputs(const MoeLayer& layer) {
  Tensor valid(ElementType::kInt32, {layer.T});
  for (int64_t t = 0; t < layer.T; ++t) {
    valid.i32()[t] = t % 7 != 3 && t < layer.T * 4 / 5;
  }
  Tensor key(ElementType::kInt64, {});
  *key.data<int64_t>() = 12345;
  return {{"x", RandomTensor({layer.T, layer.M}, 6)},
          {"valid", valid},
          {"key", key}};
}

}  // namespace gshard

#endif  // TESTS_SERVICES_MOE_PARTITION_LAYER_H_
