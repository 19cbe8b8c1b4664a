// The two halves of reduce_max_gradient, between which the numbers of ties are
// summed over devices: reduce_max_ties, reduce_max_share.

#include "services/base/status_macros.h"
#include "services/graph/kernel_calls.h"
#include "services/graph/ops/dims.h"
#include "services/ops/elementwise.h"
#include "services/ops/reduce.h"
#include "services/partition/ops/part_ops.h"

namespace gshard {
namespace {

// x, then `count` operands of the shape of reduce_max(x).
absl::Status ExpectReduced(absl::Span<const ValueType> operands, size_t count,
                           const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, count + 1));
  ASSIGN_OR_RETURN(const std::vector<ValueType> reduced,
                   InferReduction(operands.first(1), attributes));
  for (size_t i = 1; i <= count; ++i) {
    RETURN_IF_ERROR(ExpectFloat(operands, i));
    RETURN_IF_ERROR(ExpectShape(operands, i, reduced[0].shape));
  }
  return absl::OkStatus();
}

ResultTypes InferTies(absl::Span<const ValueType> operands,
                      const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectReduced(operands, 1, attributes));
  return std::vector<ValueType>{operands[1]};
}

ResultTypes InferShare(absl::Span<const ValueType> operands,
                       const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectReduced(operands, 3, attributes));
  return std::vector<ValueType>{operands[0]};
}

absl::Status TiesKernel(KernelContext& c) {
  const Tensor& x = c.operands[0];
  const Tensor y = Broadcast(c.operands[1], x.dims(), DimsOf(c));
  Tensor equal(ElementType::kFloat32, x.dims());
  for (int64_t i = 0; i < x.size(); ++i) {
    equal.f32()[i] = x.f32()[i] == y.f32()[i] ? 1.0f : 0.0f;
  }
  c.results[0] = ReduceSum(equal, DimsOf(c));
  return absl::OkStatus();
}

absl::Status ShareKernel(KernelContext& c) {
  const Tensor& x = c.operands[0];
  const std::vector<int> dims = DimsOf(c);
  const Tensor y = Broadcast(c.operands[1], x.dims(), dims);
  const Tensor share =
      Broadcast(Divide(c.operands[3], c.operands[2]), x.dims(), dims);
  Tensor dx(ElementType::kFloat32, x.dims());
  for (int64_t i = 0; i < x.size(); ++i) {
    dx.f32()[i] = x.f32()[i] == y.f32()[i] ? share.f32()[i] : 0.0f;
  }
  c.results[0] = std::move(dx);
  return absl::OkStatus();
}

}  // namespace

std::vector<OpDef> ReduceMaxPartOps() {
  return {
      {.name = "reduce_max_ties", .infer = InferTies, .kernel = TiesKernel},
      {.name = "reduce_max_share", .infer = InferShare, .kernel = ShareKernel}};
}

}  // namespace gshard
