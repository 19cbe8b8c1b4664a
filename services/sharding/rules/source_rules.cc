// input, parameter, constant: every dimension may be split.

#include "absl/strings/str_cat.h"
#include "services/sharding/rules/standard_rules.h"

namespace gshard {

NamedRules SourceRules() {
  const RuleFunction rule = [](const Program& program, const Node& node) {
    OpRule rule =
        MakeRule(absl::StrCat("->", Letters(program, node.outputs[0])));
    rule.operands.clear();
    return rule;
  };
  return {{"input", rule}, {"parameter", rule}, {"constant", rule}};
}

}  // namespace gshard
