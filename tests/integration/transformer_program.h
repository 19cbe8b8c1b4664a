// Training steps of a dense Transformer, annotated for tensor parallelism:
// attention heads and hidden width are split along "model", sentences along
// "data" if the mesh has that axis.

#ifndef TESTS_INTEGRATION_TRANSFORMER_PROGRAM_H_
#define TESTS_INTEGRATION_TRANSFORMER_PROGRAM_H_

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/graph/builder.h"
#include "services/graph/gradient.h"
#include "services/sharding/annotation.h"
#include "tests/testing/builder_ops.h"
#include "tests/testing/partitioned_steps.h"
#include "tests/testing/tensors.h"

namespace gshard {

struct TransformerSizes {
  int64_t B = 3, L = 5, M = 6, N = 4, D = 3, H = 12;
  int layers = 2;
  double learning_rate = 0.1;
};

class TransformerProgram {
 public:
  explicit TransformerProgram(const TransformerSizes& sizes) : s_(sizes) {}

  // Builds the layers (pre-norm, residual), a mean squared error, its gradients
  // and an update of every parameter. The first output is the loss.
  absl::StatusOr<StepsRun> Build(std::vector<MeshAxis> axes, int steps) {
    for (const MeshAxis& axis : axes) split_data_ |= axis.name == "data";
    const ValueId x = Activations("x");
    const ValueId target = Activations("target");
    lengths_ = b_.Input("lengths", {ElementType::kInt32, {s_.B}});
    Tensor lengths(ElementType::kInt32, {s_.B});
    for (int64_t i = 0; i < s_.B; ++i) {
      lengths.data<int32_t>()[i] = static_cast<int32_t>(s_.L - i % s_.L);
    }
    run_.inputs["lengths"] = lengths;

    ValueId y = x;
    for (int layer = 0; layer < s_.layers; ++layer) {
      y = Attention(absl::StrCat("layer_", layer, "/attention"), y);
      y = FeedForward(absl::StrCat("layer_", layer, "/ffn"), y);
    }
    const ValueId difference = Subtract(b_, y, target);
    const ValueId loss =
        b_.Scale(b_.ReduceSum(b_.Multiply(difference, difference), {0, 1, 2}),
                 1.0 / static_cast<double>(s_.B * s_.L * s_.M));
    b_.Output("loss", loss);
    ASSIGN_OR_RETURN(const std::vector<ValueId> gradients,
                     AddGradients(b_, loss, parameters_));
    for (size_t i = 0; i < parameters_.size(); ++i) {
      b_.Output("next/" + names_[i],
                Subtract(b_, parameters_[i],
                         b_.Scale(gradients[i], s_.learning_rate)));
    }
    ASSIGN_OR_RETURN(run_.program, std::move(b_).Finish());
    run_.axes = std::move(axes);
    run_.steps = steps;
    return std::move(run_);
  }

 private:
  ValueId Activations(const std::string& name) {
    const ValueId x =
        b_.Input(name, {ElementType::kFloat32, {s_.B, s_.L, s_.M}});
    run_.inputs[name] = RandomTensor({s_.B, s_.L, s_.M}, seed_++);
    return split_data_ ? Split(b_, x, 0, "data") : x;
  }

  // Weights scaled so that sums over `fan_in` keep the size of their terms.
  ValueId Weights(const std::string& name, const Dims& dims, double fan_in,
                  int split) {
    const ValueId w = b_.Parameter(name, Shape(dims.begin(), dims.end()));
    run_.parameters[name] = RandomTensor(
        dims, seed_++, static_cast<float>(std::sqrt(3.0 / fan_in)));
    names_.push_back(name);
    parameters_.push_back(w);
    return split < 0 ? Replicate(b_, w) : Split(b_, w, split, "model");
  }

  ValueId Norm(const std::string& name, ValueId x) {
    return b_.RmsNorm(x, Weights(name + ".norm", {s_.M}, 3.0, -1), 1e-6);
  }

  ValueId Attention(const std::string& name, ValueId x) {
    const ValueId normed = Norm(name, x);
    const auto project = [&](const char* what) {
      const Dims dims = {s_.M, s_.N, s_.D};
      return b_.Einsum("blm,mnd->blnd", normed,
                       Weights(absl::StrCat(name, ".", what), dims, s_.M, 1));
    };
    const ValueId query = project("query"), key = project("key"),
                  value = project("value");
    AttentionAttributes attributes;
    attributes.scale = 1.0 / std::sqrt(static_cast<double>(s_.D));
    attributes.keep_statistics = true;
    const ValueId heads =
        b_.Attention(query, key, value, lengths_, kNoValue, attributes);
    return b_.Add(x, b_.Einsum("blnd,ndm->blm", heads,
                               Weights(name + ".output", {s_.N, s_.D, s_.M},
                                       s_.N * s_.D, 0)));
  }

  ValueId FeedForward(const std::string& name, ValueId x) {
    const ValueId hidden =
        b_.Relu(b_.Einsum("blm,mh->blh", Norm(name, x),
                          Weights(name + ".wi", {s_.M, s_.H}, s_.M, 1)));
    return b_.Add(x, b_.Einsum("blh,hm->blm", hidden,
                               Weights(name + ".wo", {s_.H, s_.M}, s_.H, 0)));
  }

  const TransformerSizes s_;
  Builder b_{"transformer"};
  StepsRun run_;
  bool split_data_ = false;
  ValueId lengths_ = kNoValue;
  uint64_t seed_ = 1;
  std::vector<std::string> names_;
  std::vector<ValueId> parameters_;
};

}  // namespace gshard

#endif  // TESTS_INTEGRATION_TRANSFORMER_PROGRAM_H_
