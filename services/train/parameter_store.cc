#include "services/train/parameter_store.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

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

int64_t BytesOf(const GradientList& gradients) {
  int64_t bytes = 0;
  for (const auto& [parameter, gradient] : gradients) {
    bytes += static_cast<int64_t>(gradient.bytes());
  }
  return bytes;
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
                               std::shared_ptr<const Optimizer> optimizer,
                               Device* device)
    : specs_(std::move(specs)),
      experts_(std::move(experts)),
      optimizer_(std::move(optimizer)),
      device_(device) {
  for (const ParameterSpec& spec : specs_) {
    Dims dims = spec.dims;
    Dims logical = dims;
    State state;
    state.parameter = spec.name;
    if (spec.per_expert) {
      logical.erase(logical.begin());
      state.parts = dims[0] = static_cast<int64_t>(experts_.size());
    }
    for (int64_t i = 0; i < state.parts; ++i) {
      logical_.push_back({.name = spec.per_expert
                                      ? ExpertTensorName(spec.name, experts_[i])
                                      : spec.name,
                          .state = states_.size(),
                          .part = i,
                          .dims = logical});
    }
    state.matrix = OptimizerDims(logical, spec.row_dims);
    state.shapes = optimizer_->StateShapes(state.matrix);
    states_.push_back(std::move(state));
    shapes_.push_back({spec.name, dims});
  }
}

Tensor ParameterStore::Part(const Tensor& of, int64_t parts, int64_t part,
                            const Dims& dims) {
  return (parts == 1 ? of : of.Rows(part, part + 1)).Reshaped(dims);
}

absl::Status ParameterStore::Load(const CheckpointReader* checkpoint,
                                  uint64_t seed, const std::stop_token& stop,
                                  bool weights_only) {
  ASSIGN_OR_RETURN(tensors_, ReadParameters(specs_, experts_, checkpoint, seed,
                                            /*forms=*/{}, device_, stop));
  return LoadStates(weights_only ? nullptr : checkpoint, stop);
}

absl::Status ParameterStore::LoadStates(const CheckpointReader* checkpoint,
                                        const std::stop_token& stop) {
  for (size_t s = 0; s < states_.size(); ++s) {
    State& state = states_[s];
    state.tensors.clear();
    for (const NamedShape& shape : state.shapes) {
      Dims dims = shape.dims;
      dims.insert(dims.begin(), state.parts);
      ASSIGN_OR_RETURN(Tensor tensor,
                       AllocateTensor(ElementType::kFloat32, dims));
      std::memset(tensor.raw(), 0, tensor.bytes());
      for (const Logical& logical : logical_) {
        if (logical.state != s || checkpoint == nullptr) continue;
        RETURN_IF_ERROR(CheckNotStopped(stop));
        ASSIGN_OR_RETURN(
            const Tensor value,
            checkpoint->Read({.name = StateName(logical.name, shape.name),
                              .type = ElementType::kFloat32,
                              .dims = shape.dims}));
        Tensor part = Part(tensor, state.parts, logical.part, shape.dims);
        std::memcpy(part.raw(), value.raw(), value.bytes());
      }
      if (device_ != nullptr) {
        ASSIGN_OR_RETURN(tensor, CopyToDevice(*device_, tensor));
      }
      state.tensors.push_back(std::move(tensor));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<SquaredNorm>> ParameterStore::SquaredNorms(
    const GradientList& gradients) const {
  const TensorMap by_name(gradients.begin(), gradients.end());
  std::vector<SquaredNorm> norms(logical_.size());
  for (size_t i = 0; i < norms.size(); ++i) norms[i].tensor = logical_[i].name;
  if (device_ != nullptr) {
    ASSIGN_OR_RETURN(const auto run, device_->BeginRun());
    size_t at = 0;
    for (const State& state : states_) {
      ASSIGN_OR_RETURN(
          const std::vector<double> sums,
          run->SumsOfSquares(by_name.at(state.parameter), state.parts));
      for (const double sum : sums) norms[at++].value = sum;
    }
    return norms;
  }
  ParallelFor(static_cast<int64_t>(logical_.size()), [&](int64_t i) {
    const Logical& logical = logical_[i];
    const State& state = states_[logical.state];
    const Tensor& whole = by_name.at(state.parameter);
    if (state.parts > 1 && whole.IsZeroRow(logical.part)) return;
    const Tensor gradient =
        Part(whole, state.parts, logical.part, logical.dims);
    norms[i].value = SumOfSquares(gradient.span<float>());
  });
  return norms;
}

absl::Status ParameterStore::Update(const GradientList& gradients,
                                    double gradient_scale, int64_t step,
                                    double learning_rate) {
  const TensorMap by_name(gradients.begin(), gradients.end());
  if (device_ != nullptr) {
    return UpdateOnDevice(by_name, gradient_scale, step, learning_rate);
  }
  try {
    UpdateOnHost(by_name, gradient_scale, step, learning_rate);
    return absl::OkStatus();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for update ", step,
                     ", which copies parameters of which a snapshot is used"));
  }
}

void ParameterStore::UpdateOnHost(const TensorMap& gradients,
                                  double gradient_scale, int64_t step,
                                  double learning_rate) {
  std::vector<Tensor*> changed;
  for (auto& [name, tensor] : tensors_) changed.push_back(&tensor);
  for (State& state : states_) {
    for (Tensor& tensor : state.tensors) changed.push_back(&tensor);
  }
  ParallelFor(std::ssize(changed), [&](int64_t i) {
    if (!changed[i]->unique()) *changed[i] = changed[i]->Clone();
  });
  ParallelFor(static_cast<int64_t>(logical_.size()), [&](int64_t i) {
    const Logical& logical = logical_[i];
    const State& state = states_[logical.state];
    const auto part = [&](const Tensor& of, const Dims& dims) {
      return Part(of, state.parts, logical.part, dims);
    };
    Tensor weight = part(tensors_.at(state.parameter), logical.dims);
    const Tensor gradient = part(gradients.at(state.parameter), logical.dims);
    std::vector<Tensor> parts;
    std::vector<absl::Span<float>> spans;
    for (size_t t = 0; t < state.tensors.size(); ++t) {
      parts.push_back(part(state.tensors[t], state.shapes[t].dims));
      spans.push_back(parts.back().span<float>());
    }
    optimizer_->Update(state.matrix, weight.span<float>(),
                       gradient.span<float>(), gradient_scale, spans, step,
                       learning_rate);
  });
}

absl::Status ParameterStore::UpdateOnDevice(const TensorMap& gradients,
                                            double gradient_scale, int64_t step,
                                            double learning_rate) {
  ASSIGN_OR_RETURN(const auto run, device_->BeginRun());
  for (State& state : states_) {
    std::vector<Tensor*> changed = {&tensors_.at(state.parameter)};
    for (Tensor& tensor : state.tensors) changed.push_back(&tensor);
    for (Tensor* const tensor : changed) {
      if (tensor->unique()) continue;
      ASSIGN_OR_RETURN(*tensor, run->Copy(*tensor));
    }
    RETURN_IF_ERROR(
        optimizer_->Update(*run, state.parts, state.matrix, *changed[0],
                           gradients.at(state.parameter), gradient_scale,
                           absl::MakeSpan(state.tensors), step, learning_rate));
  }
  return run->Finish();
}

std::vector<NamedTensor> ParameterStore::Snapshot() const {
  std::vector<NamedTensor> snapshot;
  for (const Logical& logical : logical_) {
    const State& state = states_[logical.state];
    const auto add = [&](std::string name, const Tensor& of, const Dims& dims) {
      snapshot.push_back(
          {std::move(name), Part(of, state.parts, logical.part, dims)});
    };
    add(logical.name, tensors_.at(state.parameter), logical.dims);
    for (size_t i = 0; i < state.shapes.size(); ++i) {
      add(StateName(logical.name, state.shapes[i].name), state.tensors[i],
          state.shapes[i].dims);
    }
  }
  return snapshot;
}

int64_t ParameterStore::bytes() const {
  int64_t numbers = 0;
  for (const NamedShape& shape : shapes_) numbers += NumElements(shape.dims);
  for (const State& state : states_) {
    for (const NamedShape& shape : state.shapes) {
      numbers += state.parts * NumElements(shape.dims);
    }
  }
  return numbers * static_cast<int64_t>(sizeof(float));
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
