// Elementwise operators, which pass all dimensions through. Dropout's random
// numbers depend on the position in the whole tensor: see
// services/partition/lowering/dropout_lowering.cc.

#include "absl/strings/str_cat.h"
#include "services/graph/op.h"
#include "services/sharding/rules/standard_rules.h"

namespace gshard {
namespace {

// Operands have the result's shape or its last dimensions.
OpRule Elementwise(const Program& program, const Node& node) {
  const std::string result = Letters(program, node.outputs[0]);
  std::string text;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const size_t rank = program.type(node.inputs[i]).shape.size();
    absl::StrAppend(&text, i > 0 ? "," : "",
                    result.substr(result.size() - rank));
  }
  OpRule rule = MakeRule(absl::StrCat(text, "->", result));
  rule.pass_through = true;
  // Not dropout, whose random numbers depend on the position.
  rule.elementwise = node.op->name != "dropout";
  return rule;
}

}  // namespace

NamedRules ElementwiseRules() {
  NamedRules rules;
  // Dropout's last operand, a scalar key, also fits the rule.
  for (const char* op : {"add", "subtract", "multiply", "divide", "scale",
                         "exp", "cast", "relu", "relu_gradient", "dropout"}) {
    rules.emplace_back(op, Elementwise);
  }
  rules.emplace_back("dropout_rows", FixedRule("(et)h,(et),->(et)h", true));
  return rules;
}

}  // namespace gshard
