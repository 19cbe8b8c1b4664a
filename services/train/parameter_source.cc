#include "services/train/parameter_source.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/ops/cast.h"

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

void CopyInto(const Tensor& value, Tensor target) {
  if (target.type() == ElementType::kBFloat16) {
    CastRow(value.f32(), target.data<BFloat16>(), value.size());
  } else {
    std::memcpy(target.raw(), value.raw(), value.bytes());
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
    uint64_t seed, const std::set<std::string>& rounded) {
  TensorMap parameters;
  for (const ParameterSpec& spec : specs) {
    Dims dims = spec.dims;
    if (spec.per_expert) dims[0] = static_cast<int64_t>(experts.size());
    Tensor tensor(rounded.count(spec.name) > 0 ? ElementType::kBFloat16
                                               : ElementType::kFloat32,
                  dims);
    if (spec.per_expert) {
      for (size_t i = 0; i < experts.size(); ++i) {
        ASSIGN_OR_RETURN(const Tensor value,
                         ReadLogical(spec, {experts[i]}, checkpoint, seed));
        const auto row = static_cast<int64_t>(i);
        CopyInto(value, tensor.Rows(row, row + 1));
      }
    } else {
      ASSIGN_OR_RETURN(const Tensor value,
                       ReadLogical(spec, {}, checkpoint, seed));
      CopyInto(value, tensor);
    }
    parameters[spec.name] = std::move(tensor);
  }
  return parameters;
}

}  // namespace gshard
