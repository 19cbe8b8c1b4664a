// dropout_part, dropout_rows_part.

#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/random.h"
#include "services/base/status_macros.h"
#include "services/ops/dropout.h"
#include "services/partition/ops/part_ops.h"
#include "services/partition/ops/part_position.h"

namespace gshard {
namespace {

// Like the operator on the whole, with the position of operand 0.
ResultTypes InferPartOf(absl::string_view whole,
                        absl::Span<const ValueType> operands,
                        const Attributes& attributes) {
  ASSIGN_OR_RETURN(std::vector<ValueType> results,
                   FindOp(whole)->infer(operands, attributes));
  RETURN_IF_ERROR(ExpectPosition(attributes, operands[0].shape.size()));
  return results;
}

float Rate(const KernelContext& c) {
  return static_cast<float>(FloatAttribute(c.attributes(), "rate"));
}

uint64_t Key(const KernelContext& c) {
  return FoldIn(static_cast<uint64_t>(*c.operands.back().data<int64_t>()),
                IntAttribute(c.attributes(), "salt"));
}

absl::Status RunDropout(KernelContext& c) {
  ASSIGN_OR_RETURN(const PartPosition at,
                   FindPosition(c, c.operands[0].dims()));
  c.results[0] = DropoutPart(c.Take(0), at.begin, at.whole, Rate(c), Key(c));
  return absl::OkStatus();
}

// Rows carry their indices; columns count from the whole's first one.
absl::Status RunDropoutRows(KernelContext& c) {
  ASSIGN_OR_RETURN(const PartPosition at,
                   FindPosition(c, c.operands[0].dims()));
  for (const int32_t row : std::as_const(c.operands[1]).span<int32_t>()) {
    if (row < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("rows must not be negative, got ", row));
    }
  }
  c.results[0] = DropoutRowsPart(c.Take(0), c.operands[1], at.begin[1],
                                 at.whole[1], Rate(c), Key(c));
  return absl::OkStatus();
}

}  // namespace

std::vector<OpDef> DropoutPartOps() {
  return {{.name = "dropout_part",
           .infer = std::bind_front(InferPartOf, "dropout"),
           .kernel = RunDropout},
          {.name = "dropout_rows_part",
           .infer = std::bind_front(InferPartOf, "dropout_rows"),
           .kernel = RunDropoutRows}};
}

}  // namespace gshard
