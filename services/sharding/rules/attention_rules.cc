// attention, attention_gradient: by sentence (b), by head (n) and by query (q);
// keys, head width and the two statistics (S) of a query whole. Causal masks and dropout: see
// lowering/attention_lowering.cc. paged_attention, update_cache: by head, and
// the former by row (r); page indices refer to the whole cache.

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
  if (node.outputs.size() > 1) text += ",bnqS";
  return WithLengths(MakeRule(text), 3);
}

// dk and dv are sums over the queries.
OpRule AttentionGradient(const Program&, const Node& node) {
  std::string text = "bqnD,bKnD,bKnD,b,bnqS,bqnD";
  if (node.inputs.size() > 6) text += ",";
  text += "->bqnD,bKnD,bKnD";
  return WithLengths(MakeRule(text), 3);
}

}  // namespace

NamedRules AttentionRules() {
  return {{"attention", Attention},
          {"attention_gradient", AttentionGradient},
          {"paged_attention",
           [](const Program&, const Node&) {
             return WithLengths(MakeRule("rLnD,SPnD,SPnD,rT,r->rLnD"), 4);
           }},
          {"update_cache", [](const Program&, const Node&) {
             return MakeRule("SPnd,RLnd,R->SPnd");
           }}};
}

}  // namespace gshard
