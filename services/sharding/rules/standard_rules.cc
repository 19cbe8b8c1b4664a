#include "services/sharding/rules/standard_rules.h"

namespace gshard {

NamedRules StandardRules() {
  NamedRules all;
  for (const auto& rules :
       {SourceRules, ElementwiseRules, ShapeRules, WindowRules,
        ContractionRules, LookupRules, NormRules, AttentionRules, LossRules,
        RaggedRules}) {
    for (auto& rule : rules()) all.push_back(std::move(rule));
  }
  return all;
}

RuleFunction FixedRule(absl::string_view letters, bool pass_through) {
  OpRule rule = MakeRule(letters);
  rule.pass_through = pass_through;
  return [rule](const Program&, const Node&) { return rule; };
}

std::string Letters(const Program& program, ValueId value, char first) {
  std::string letters;
  for (size_t d = 0; d < program.type(value).shape.size(); ++d) {
    letters += static_cast<char>(first + d);
  }
  return letters;
}

}  // namespace gshard
