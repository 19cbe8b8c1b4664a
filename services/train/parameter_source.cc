#include "services/train/parameter_source.h"

#include <algorithm>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/concurrently.h"
#include "services/base/parallel.h"
#include "services/base/status_macros.h"
#include "services/ops/cast.h"
#include "services/ops/int8_panel.h"
#include "services/ops/panel_layout.h"

namespace gshard {
namespace {

// A tensor of the checkpoint: a whole parameter, or one expert's part.
struct Part {
  const ParameterSpec& spec;
  std::vector<int32_t> expert;  // one, or none
  const WeightForm* form;       // null for float32
  int64_t index;                // of the part in `tensor`
  Tensor* tensor;
};

absl::StatusOr<Tensor> ReadLogical(const Part& part,
                                   const CheckpointReader* checkpoint,
                                   uint64_t seed) {
  const ParameterSpec& spec = part.spec;
  if (checkpoint == nullptr) return InitialValue(spec, seed, part.expert);
  if (!spec.per_expert) {
    return checkpoint->Read(
        {.name = spec.name, .type = ElementType::kFloat32, .dims = spec.dims});
  }
  return checkpoint->Read(
      {.name = ExpertTensorName(spec.name, part.expert[0]),
       .type = ElementType::kFloat32,
       .dims = Dims(spec.dims.begin() + 1, spec.dims.end())});
}

// An uninitialised tensor for the values of a parameter, in the requested form.
absl::StatusOr<Tensor> NewParameter(const ParameterSpec& spec, const Dims& dims,
                                    const WeightForm* form_or_null) {
  if (form_or_null == nullptr) return Tensor(ElementType::kFloat32, dims);
  const WeightForm& form = *form_or_null;
  if (form.type == ElementType::kInt8) {
    if (form.batch_dims == (spec.per_expert ? 1 : 0)) {
      return NewInt8Weight(form, dims);
    }
    return absl::InvalidArgumentError(
        absl::StrCat("parameter '", spec.name, "': expected i8 as ",
                     spec.per_expert ? "a matrix of each expert" : "one matrix",
                     ", got ", form.batch_dims, " dimensions of matrices"));
  }
  if (form.in_panels() && form.batch_dims == (spec.per_expert ? 1 : 0) &&
      std::ssize(dims) > form.batch_dims + form.row_dims) {
    Tensor panels =
        NewPanels(form.type, dims, form.MatricesOf(dims), form.RowsOf(dims));
    if (!panels.empty()) return panels;
  }
  return Tensor(form.type, dims);
}

// The same. Errors: ResourceExhausted if there is no memory.
absl::StatusOr<Tensor> AllocateParameter(const ParameterSpec& spec,
                                         const Dims& dims,
                                         const WeightForm* form_or_null) {
  try {
    return NewParameter(spec, dims, form_or_null);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for parameter '", spec.name, "'"));
  }
}

// Copies a value into part `index` of `target`, which has the form `form`.
void CopyInto(const Tensor& value, int64_t index, const WeightForm* form,
              Tensor& target) {
  if (target.type() == ElementType::kInt8) {
    RoundMatrix(value, index, form->transposed, target);
  } else if (target.panel_rows() > 0) {
    PackMatrix(Cast(value, target.type()), index, form->transposed, target);
  } else if (target.type() == ElementType::kBFloat16) {
    CastRow(value.f32(), target.data<BFloat16>() + index * value.size(),
            value.size());
  } else {
    std::copy_n(value.f32(), value.size(), target.f32() + index * value.size());
  }
}

// Each part is read, verified and converted by one thread, in memory of its
// own.
absl::Status ReadParts(const std::vector<Part>& parts,
                       const CheckpointReader* checkpoint, uint64_t seed,
                       const std::stop_token& stop) {
  return RunConcurrently(
      parts.size(), ComputeThreads(), [&](size_t i) -> absl::Status {
        RETURN_IF_ERROR(CheckNotStopped(stop));
        const Part& part = parts[i];
        ASSIGN_OR_RETURN(const Tensor value,
                         ReadLogical(part, checkpoint, seed));
        CopyInto(value, part.index, part.form, *part.tensor);
        return absl::OkStatus();
      });
}

}  // namespace

absl::Status CheckNotStopped(const std::stop_token& stop) {
  if (!stop.stop_requested()) return absl::OkStatus();
  return absl::CancelledError("the load was stopped");
}

absl::Status CheckSteps(const ParameterSource& source) {
  if (source.step < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("step: expected at least 0, got ", source.step));
  }
  if (source.skipped_steps < 0 || source.skipped_steps > source.step) {
    return absl::InvalidArgumentError(
        absl::StrCat("skipped_steps: expected 0 to ", source.step, ", got ",
                     source.skipped_steps));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<CheckpointReader>> OpenToTrain(
    const ParameterSource& source) {
  if (source.checkpoint_directory.empty()) return nullptr;
  ASSIGN_OR_RETURN(std::unique_ptr<CheckpointReader> checkpoint,
                   CheckpointReader::Open(source.checkpoint_directory));
  const int64_t expected = source.step - source.skipped_steps;
  if (source.weights_only || checkpoint->manifest().step == expected) {
    return checkpoint;
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "expected a checkpoint of step ", expected, ", got ",
      checkpoint->manifest().step, " in ", source.checkpoint_directory));
}

absl::StatusOr<TensorMap> ReadParameters(
    const std::vector<ParameterSpec>& specs,
    const std::vector<int32_t>& experts, const CheckpointReader* checkpoint,
    uint64_t seed, const WeightForms& forms, Device* device,
    const std::stop_token& stop) {
  std::vector<Tensor> tensors(specs.size());
  std::vector<Part> parts;
  for (size_t s = 0; s < specs.size(); ++s) {
    const ParameterSpec& spec = specs[s];
    Dims dims = spec.dims;
    if (spec.per_expert) dims[0] = static_cast<int64_t>(experts.size());
    const auto found = forms.find(spec.name);
    const WeightForm* const form =
        found == forms.end() ? nullptr : &found->second;
    Tensor& tensor = tensors[s];
    ASSIGN_OR_RETURN(tensor, AllocateParameter(spec, dims, form));
    if (spec.per_expert) {
      for (size_t i = 0; i < experts.size(); ++i) {
        parts.push_back(
            {spec, {experts[i]}, form, static_cast<int64_t>(i), &tensor});
      }
    } else {
      parts.push_back({spec, {}, form, 0, &tensor});
    }
    if (device == nullptr) continue;
    RETURN_IF_ERROR(ReadParts(parts, checkpoint, seed, stop));
    parts.clear();
    ASSIGN_OR_RETURN(tensor, CopyToDevice(*device, tensor));
  }
  RETURN_IF_ERROR(ReadParts(parts, checkpoint, seed, stop));
  TensorMap parameters;
  for (size_t s = 0; s < specs.size(); ++s) {
    parameters[specs[s].name] = std::move(tensors[s]);
  }
  return parameters;
}

}  // namespace gshard
