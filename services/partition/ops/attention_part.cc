// attention_part, attention_gradient_part.

#include "services/base/check.h"
#include "services/base/status_macros.h"
#include "services/partition/ops/part_ops.h"
#include "services/partition/ops/part_position.h"

namespace gshard {
namespace {

OpDef PartOf(const char* whole, const char* name) {
  OpDef op;
  op.name = name;
  op.infer = [whole](absl::Span<const ValueType> operands,
                     const Attributes& attributes) -> ResultTypes {
    ASSIGN_OR_RETURN(std::vector<ValueType> results,
                     FindOp(whole)->infer(operands, attributes));
    RETURN_IF_ERROR(ExpectPosition(attributes, operands[0].shape.size()));
    return results;
  };
  // The operator on the whole, given its position.
  op.kernel = [whole](KernelContext& c) -> absl::Status {
    ASSIGN_OR_RETURN(const PartPosition at,
                     FindPosition(c, c.operands[0].dims()));
    Node node = c.node;
    node.op = FindOp(whole);
    node.attributes["first_sentence"] = at.begin[0];
    node.attributes["first_query"] = at.begin[1];
    node.attributes["first_head"] = at.begin[2];
    node.attributes["all_queries"] = at.whole[1];
    KernelContext context{.node = node,
                          .bindings = c.bindings,
                          .result_types = c.result_types,
                          .operands = c.operands,
                          .results = c.results,
                          .run = c.run,
                          .backend = c.backend};
    const Kernel* const kernel = FindKernel(whole, c.backend);
    CHECK(kernel != nullptr);
    return (*kernel)(context);
  };
  return op;
}

}  // namespace

std::vector<OpDef> AttentionPartOps() {
  return {PartOf("attention", "attention_part"),
          PartOf("attention_gradient", "attention_gradient_part")};
}

}  // namespace gshard
