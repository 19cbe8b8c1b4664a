// attention, attention_gradient, update_cache: by sentence (b), by head (n)
// and by query (q); keys and head width in one piece. Causal masks and dropout:
// see lowering/attention_lowering.cc.

#include "services/sharding/rules/standard_rules.h"

namespace gshard {
namespace {

OpRule WithLengths(OpRule rule, size_t lengths) {
  rule.operand_rules.resize(lengths + 1);
  rule.operand_rules[lengths] = {.identity = 0.0, .mask_always = true};
  return rule;
}

OpRule Attention(const Program&, const Node& node) {
  std::string text = "bqnD,bKnD,bKnD,b";
  if (node.inputs.size() > 4) text += ",";
  text += "->bqnD";
  if (node.outputs.size() > 1) text += ",bnqK";
  return WithLengths(MakeRule(text), 3);
}

// dk and dv are sums over the queries.
OpRule AttentionGradient(const Program&, const Node& node) {
  std::string text = "bqnD,bKnD,bKnD,b,bnqK,bqnD";
  if (node.inputs.size() > 6) text += ",";
  text += "->bqnD,bKnD,bKnD";
  return WithLengths(MakeRule(text), 3);
}

}  // namespace

NamedRules AttentionRules() {
  return {{"attention", Attention},
          {"attention_gradient", AttentionGradient},
          {"update_cache", [](const Program&, const Node&) {
             OpRule rule = MakeRule("bPnd,bLnd,b->bPnd");
             rule.operand_rules.resize(3);
             rule.operand_rules[2] = {.identity = 0.0, .mask_always = true};
             return rule;
           }}};
}

}  // namespace gshard
