// ragged_dot, ragged_bias_add and their gradients: by expert (e), by token (t)
// and along the widths. Group sizes count the device's own rows.

#include "services/sharding/rules/standard_rules.h"

namespace gshard {
namespace {

// The last operand is the group sizes.
RuleFunction Ragged(absl::string_view letters) {
  OpRule rule = MakeRule(letters);
  rule.operand_rules.resize(rule.operands.size());
  rule.operand_rules.back() = {
      .identity = 0.0, .mask_always = true, .own_share = true};
  return [rule](const Program&, const Node&) { return rule; };
}

}  // namespace

NamedRules RaggedRules() {
  return {{"ragged_dot", Ragged("(et)m,emh,e->(et)h")},
          {"ragged_dot_rows_gradient", Ragged("(et)h,emh,e->(et)m")},
          {"ragged_dot_weights_gradient", Ragged("(et)m,(et)h,e->emh")},
          {"ragged_bias_add", Ragged("(et)h,eh,e->(et)h")},
          {"ragged_bias_gradient", Ragged("(et)h,e->eh")}};
}

}  // namespace gshard
