#include "services/moe/loss_shares.h"

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

ResultTypes InferCounts(absl::Span<const ValueType> operands,
                        const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 1));
  RETURN_IF_ERROR(ExpectInt(operands, 0));
  RETURN_IF_ERROR(ExpectRank(operands, 0, 2));
  RETURN_IF_ERROR(ExpectAttribute<int64_t>(attributes, "group_size"));
  if (IntAttribute(attributes, "group_size") < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("'group_size' must be at least 1, got ",
                     IntAttribute(attributes, "group_size")));
  }
  return std::vector<ValueType>{{ElementType::kFloat32, {2}}};
}

// The first choice of padding is -1. Counts are exact: below 2^24 per device.
absl::Status CountsKernel(KernelContext& c) {
  const Tensor& expert = c.operands[0];
  const int64_t group_size = IntAttribute(c.attributes(), "group_size");
  int64_t groups = 0, tokens = 0, last_group = -1;
  for (int64_t t = 0; t < expert.dim(0); ++t) {
    if (expert.i32()[t * expert.dim(1)] < 0) continue;
    ++tokens;
    groups += t / group_size != last_group;
    last_group = t / group_size;
  }
  c.results[0] = Tensor(ElementType::kFloat32, {2});
  c.results[0].f32()[0] = static_cast<float>(groups);
  c.results[0].f32()[1] = static_cast<float>(tokens);
  return absl::OkStatus();
}

ResultTypes InferShares(absl::Span<const ValueType> operands,
                        const Attributes&) {
  RETURN_IF_ERROR(ExpectOperands(operands, 2));
  for (int i = 0; i < 2; ++i) {
    RETURN_IF_ERROR(ExpectFloat(operands, i));
    RETURN_IF_ERROR(ExpectShape(operands, i, {2}));
  }
  return std::vector<ValueType>(2, {ElementType::kFloat32, {}});
}

absl::Status SharesKernel(KernelContext& c) {
  for (int i = 0; i < 2; ++i) {
    const float total = c.operands[1].f32()[i];
    c.results[i] =
        Tensor::Scalar(total > 0.0f ? c.operands[0].f32()[i] / total : 0.0f);
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<OpDef> LossShareOps() {
  return {
      {.name = "loss_counts", .infer = InferCounts, .kernel = CountsKernel},
      {.name = "loss_shares", .infer = InferShares, .kernel = SharesKernel}};
}

}  // namespace gshard
