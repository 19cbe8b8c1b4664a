#include "services/train/parameter_source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/ops/cast.h"
#include "services/ops/int8_panel.h"
#include "services/ops/panel.h"

namespace gshard {
namespace {

// One expert's part of a per-expert parameter, or, without one, the whole.
absl::StatusOr<Tensor> ReadLogical(const ParameterSpec& spec,
                                   const std::vector<int32_t>& expert,
                                   const CheckpointReader* checkpoint,
                                   uint64_t seed) {
  if (checkpoint == nullptr) return InitialValue(spec, seed, expert);
  if (!spec.per_expert) {
    return checkpoint->Read(
        {.name = spec.name, .type = ElementType::kFloat32, .dims = spec.dims});
  }
  return checkpoint->Read(
      {.name = ExpertTensorName(spec.name, expert[0]),
       .type = ElementType::kFloat32,
       .dims = Dims(spec.dims.begin() + 1, spec.dims.end())});
}

// For the values of a parameter, in the form in which they are wanted.
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

// The `index`th part of `target`, which has that form.
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

}  // namespace

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
  if (checkpoint->manifest().step == expected) return checkpoint;
  return absl::FailedPreconditionError(absl::StrCat(
      "expected a checkpoint of step ", expected, ", got ",
      checkpoint->manifest().step, " in ", source.checkpoint_directory));
}

absl::StatusOr<TensorMap> ReadParameters(
    const std::vector<ParameterSpec>& specs,
    const std::vector<int32_t>& experts, const CheckpointReader* checkpoint,
    uint64_t seed, const WeightForms& forms, Device* device) {
  TensorMap parameters;
  for (const ParameterSpec& spec : specs) {
    Dims dims = spec.dims;
    if (spec.per_expert) dims[0] = static_cast<int64_t>(experts.size());
    const auto found = forms.find(spec.name);
    const WeightForm* const form =
        found == forms.end() ? nullptr : &found->second;
    ASSIGN_OR_RETURN(Tensor tensor, NewParameter(spec, dims, form));
    const size_t parts = spec.per_expert ? experts.size() : 1;
    for (size_t i = 0; i < parts; ++i) {
      const std::vector<int32_t> expert = spec.per_expert
                                              ? std::vector<int32_t>{experts[i]}
                                              : std::vector<int32_t>{};
      ASSIGN_OR_RETURN(const Tensor value,
                       ReadLogical(spec, expert, checkpoint, seed));
      CopyInto(value, static_cast<int64_t>(i), form, tensor);
    }
    if (device != nullptr) {
      ASSIGN_OR_RETURN(tensor, CopyToDevice(*device, tensor));
    }
    parameters[spec.name] = std::move(tensor);
  }
  return parameters;
}

}  // namespace gshard
