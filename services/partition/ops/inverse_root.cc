// inverse_root.

#include <cmath>

#include "services/base/status_macros.h"
#include "services/ops/reuse.h"
#include "services/partition/ops/part_ops.h"

namespace gshard {
namespace {

ResultTypes InferInverseRoot(absl::Span<const ValueType> operands,
                             const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 1));
  RETURN_IF_ERROR(ExpectFloat(operands, 0));
  for (const char* name : {"factor", "epsilon"}) {
    RETURN_IF_ERROR(ExpectAttribute<double>(attributes, name));
  }
  return std::vector<ValueType>{operands[0]};
}

absl::Status RunInverseRoot(KernelContext& c) {
  const auto factor =
      static_cast<float>(FloatAttribute(c.attributes(), "factor"));
  const auto epsilon =
      static_cast<float>(FloatAttribute(c.attributes(), "epsilon"));
  const Tensor x = c.Take(0);
  Tensor y = ReuseOrAllocate(x);
  for (int64_t i = 0; i < x.size(); ++i) {
    y.f32()[i] = 1.0f / std::sqrt(x.f32()[i] * factor + epsilon);
  }
  c.results[0] = std::move(y);
  return absl::OkStatus();
}

}  // namespace

std::vector<OpDef> InverseRootOps() {
  return {{.name = "inverse_root",
           .infer = InferInverseRoot,
           .kernel = RunInverseRoot}};
}

}  // namespace gshard
