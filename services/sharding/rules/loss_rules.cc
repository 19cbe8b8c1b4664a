// cross_entropy, cross_entropy_gradient: by row, and by word (see
// lowering/cross_entropy_lowering.cc). Labels of padding are negative, which
// marks a row as padding.

#include "services/sharding/rules/standard_rules.h"

namespace gshard {
namespace {

RuleFunction WithLabels(absl::string_view letters) {
  OpRule rule = MakeRule(letters);
  rule.operand_rules.resize(2);
  // Mask logits of padding, too: 0 * NaN is NaN.
  rule.operand_rules[0] = {.identity = 0.0, .mask_always = true};
  rule.operand_rules[1] = {.identity = -1.0, .mask_always = true};
  return [rule](const Program& program, const Node& node) {
    OpRule of_node = rule;
    // The loss depends on the number of words.
    if (!program.type(node.inputs[0]).shape[1].is_static()) {
      of_node.factors[rule.operands[0][1][0]].whole = true;
    }
    return of_node;
  };
}

}  // namespace

NamedRules LossRules() {
  return {{"cross_entropy", WithLabels("nv,n->,n")},
          {"cross_entropy_gradient", WithLabels("nv,n,n,->nv")}};
}

}  // namespace gshard
