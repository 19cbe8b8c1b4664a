// embedding, embedding_gradient, sinusoidal_positions. Tables split over the
// vocabulary: see lowering/embedding_lowering.cc.

#include "absl/strings/str_cat.h"
#include "services/sharding/rules/standard_rules.h"

namespace gshard {
namespace {

// Padding of the ids must not be looked up.
OpRule WithIds(OpRule rule, size_t ids) {
  rule.operand_rules.resize(ids + 1);
  rule.operand_rules[ids] = {.identity = 0.0, .mask_always = true};
  return rule;
}

}  // namespace

NamedRules LookupRules() {
  return {
      {"embedding",
       [](const Program& program, const Node& node) {
         const std::string ids = Letters(program, node.inputs[1]);
         return WithIds(MakeRule(absl::StrCat("vz,", ids, "->", ids, "z")), 1);
       }},
      {"embedding_gradient",
       [](const Program& program, const Node& node) {
         const std::string ids = Letters(program, node.inputs[1]);
         return WithIds(MakeRule(absl::StrCat(ids, "z,", ids, "->vz")), 1);
       }},
      {"sinusoidal_positions",
       [](const Program& program, const Node& node) {
         const std::string ids = Letters(program, node.inputs[0]);
         return WithIds(MakeRule(absl::StrCat(ids, "->", ids, "Z")), 0);
       }},
  };
}

}  // namespace gshard
