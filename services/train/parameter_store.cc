#include "services/train/parameter_store.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "services/base/parallel.h"
#include "services/base/status_macros.h"
#include "services/train/gradient_norm.h"
#include "services/train/parameter_source.h"

namespace gshard {
namespace {

std::string StateName(absl::string_view tensor, absl::string_view state) {
  return absl::StrCat("optimizer/", tensor, "/", state);
}

}  // namespace

Dims OptimizerDims(const Dims& dims, int row_dims) {
  if (dims.size() <= 2) return dims;
  const absl::Span<const int64_t> all = dims;
  return {NumElements(all.subspan(0, row_dims)),
          NumElements(all.subspan(row_dims))};
}

double TotalSquaredNorm(std::vector<SquaredNorm> norms) {
  std::sort(norms.begin(), norms.end(),
            [](const SquaredNorm& a, const SquaredNorm& b) {
              return a.tensor < b.tensor;
            });
  double total = 0.0;
  for (const SquaredNorm& norm : norms) total += norm.value;
  return total;
}

absl::StatusOr<std::vector<Tensor>> InOrder(
    const std::vector<NamedShape>& shapes, GradientList gradients) {
  const size_t count = gradients.size();
  TensorMap by_name;
  for (auto& [name, gradient] : gradients) {
    by_name[name] = std::move(gradient);
  }
  gradients.clear();
  std::vector<Tensor> values;
  for (const NamedShape& shape : shapes) {
    const auto found = by_name.find(shape.name);
    if (found == by_name.end() ||
        found->second.type() != ElementType::kFloat32 ||
        found->second.dims() != shape.dims) {
      return absl::InvalidArgumentError(absl::StrCat(
          "gradient '", shape.name, "': expected ",
          TypeString(ElementType::kFloat32, shape.dims), ", got ",
          found == by_name.end() ? "none" : found->second.TypeString()));
    }
    values.push_back(std::move(found->second));
  }
  if (count == shapes.size()) return values;
  return absl::InvalidArgumentError(
      absl::StrCat("expected ", shapes.size(), " gradients, got ", count));
}

ParameterStore::ParameterStore(std::vector<ParameterSpec> specs,
                               std::vector<int32_t> experts,
                               std::shared_ptr<const Optimizer> optimizer)
    : specs_(std::move(specs)),
      experts_(std::move(experts)),
      optimizer_(std::move(optimizer)) {
  for (const ParameterSpec& spec : specs_) {
    Dims dims = spec.dims;
    const auto add = [&](std::string name, int64_t row, Dims logical_dims) {
      Logical logical{.name = std::move(name),
                      .parameter = spec.name,
                      .row = row,
                      .dims = std::move(logical_dims),
                      .matrix = {},
                      .state = {}};
      logical.matrix = OptimizerDims(logical.dims, spec.row_dims);
      logical.state = InitialState(*optimizer_, logical.matrix);
      logical_.push_back(std::move(logical));
    };
    if (spec.per_expert) {
      dims[0] = static_cast<int64_t>(experts_.size());
      for (size_t i = 0; i < experts_.size(); ++i) {
        add(ExpertTensorName(spec.name, experts_[i]), i,
            Dims(dims.begin() + 1, dims.end()));
      }
    } else {
      add(spec.name, -1, dims);
    }
    shapes_.push_back({spec.name, dims});
  }
}

Tensor ParameterStore::View(const Logical& logical, const Tensor& of) const {
  if (logical.row < 0) return of;
  return of.Rows(logical.row, logical.row + 1).Reshaped(logical.dims);
}

absl::Status ParameterStore::Initialize(uint64_t seed) {
  ASSIGN_OR_RETURN(
      tensors_, ReadParameters(specs_, experts_, /*checkpoint=*/nullptr, seed));
  for (Logical& logical : logical_) {
    for (Tensor& state : logical.state) {
      std::memset(state.raw(), 0, state.bytes());
    }
  }
  return absl::OkStatus();
}

absl::Status ParameterStore::Load(const CheckpointReader& checkpoint) {
  ASSIGN_OR_RETURN(tensors_,
                   ReadParameters(specs_, experts_, &checkpoint, /*seed=*/0));
  for (Logical& logical : logical_) {
    const std::vector<NamedShape> shapes =
        optimizer_->StateShapes(logical.matrix);
    for (size_t i = 0; i < shapes.size(); ++i) {
      ASSIGN_OR_RETURN(
          const Tensor state,
          checkpoint.Read({.name = StateName(logical.name, shapes[i].name),
                           .type = ElementType::kFloat32,
                           .dims = shapes[i].dims}));
      logical.state[i] = state.Clone();
    }
  }
  return absl::OkStatus();
}

std::vector<SquaredNorm> ParameterStore::SquaredNorms(
    const GradientList& gradients) const {
  const TensorMap by_name(gradients.begin(), gradients.end());
  std::vector<SquaredNorm> norms(logical_.size());
  ParallelFor(static_cast<int64_t>(logical_.size()), [&](int64_t i) {
    const Logical& logical = logical_[i];
    const Tensor gradient = View(logical, by_name.at(logical.parameter));
    norms[i] = {.tensor = logical.name,
                .value = SumOfSquares(gradient.span<float>())};
  });
  return norms;
}

void ParameterStore::Update(const GradientList& gradients,
                            double gradient_scale, int64_t step,
                            double learning_rate) {
  const TensorMap by_name(gradients.begin(), gradients.end());
  for (auto& [name, tensor] : tensors_) {
    if (!tensor.unique()) tensor = tensor.Clone();
  }
  ParallelFor(static_cast<int64_t>(logical_.size()), [&](int64_t i) {
    Logical& logical = logical_[i];
    Tensor weight = View(logical, tensors_.at(logical.parameter));
    const Tensor gradient = View(logical, by_name.at(logical.parameter));
    std::vector<absl::Span<float>> state;
    for (Tensor& tensor : logical.state) {
      if (!tensor.unique()) tensor = tensor.Clone();
      state.push_back(tensor.span<float>());
    }
    optimizer_->Update(logical.matrix, weight.span<float>(),
                       gradient.span<float>(), gradient_scale, state, step,
                       learning_rate);
  });
}

std::vector<NamedTensor> ParameterStore::Snapshot() const {
  std::vector<NamedTensor> snapshot;
  for (const Logical& logical : logical_) {
    snapshot.push_back(
        {logical.name, View(logical, tensors_.at(logical.parameter))});
    const std::vector<NamedShape> shapes =
        optimizer_->StateShapes(logical.matrix);
    for (size_t i = 0; i < shapes.size(); ++i) {
      snapshot.push_back(
          {StateName(logical.name, shapes[i].name), logical.state[i]});
    }
  }
  return snapshot;
}

int64_t ParameterStore::bytes() const {
  int64_t bytes = 0;
  for (const NamedShape& shape : shapes_) {
    bytes += NumElements(shape.dims) * static_cast<int64_t>(sizeof(float));
  }
  for (const Logical& logical : logical_) {
    for (const Tensor& state : logical.state) bytes += state.bytes();
  }
  return bytes;
}

std::vector<TensorSpec> CheckpointTensors(const ModelConfig& config,
                                          const Optimizer* optimizer) {
  std::vector<TensorSpec> specs;
  const auto add = [&](const std::string& name, const Dims& dims,
                       int row_dims) {
    specs.push_back({name, ElementType::kFloat32, dims});
    if (optimizer == nullptr) return;
    for (const NamedShape& shape :
         optimizer->StateShapes(OptimizerDims(dims, row_dims))) {
      specs.push_back(
          {StateName(name, shape.name), ElementType::kFloat32, shape.dims});
    }
  };
  for (const ParameterSpec& spec : ModelParameters(config)) {
    if (!spec.per_expert) {
      add(spec.name, spec.dims, spec.row_dims);
      continue;
    }
    const Dims dims(spec.dims.begin() + 1, spec.dims.end());
    for (int64_t e = 0; e < spec.dims[0]; ++e) {
      add(ExpertTensorName(spec.name, e), dims, spec.row_dims);
    }
  }
  return specs;
}

}  // namespace gshard
