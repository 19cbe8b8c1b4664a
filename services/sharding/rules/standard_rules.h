// The rules of services/graph's operators, one function per file.

#ifndef SERVICES_SHARDING_RULES_STANDARD_RULES_H_
#define SERVICES_SHARDING_RULES_STANDARD_RULES_H_

#include <string>
#include <utility>
#include <vector>

#include "services/sharding/rule.h"

namespace gshard {

using NamedRules = std::vector<std::pair<std::string, RuleFunction>>;

NamedRules SourceRules();
NamedRules ElementwiseRules();
NamedRules ShapeRules();
NamedRules WindowRules();
NamedRules ContractionRules();
NamedRules LookupRules();
NamedRules NormRules();
NamedRules AttentionRules();
NamedRules LossRules();
NamedRules RaggedRules();

// Returns all of them.
NamedRules StandardRules();

// A rule that is the same for every node.
RuleFunction FixedRule(absl::string_view letters, bool pass_through = false);

// A letter for each dimension of a value, from `first` on.
std::string Letters(const Program& program, ValueId value, char first = 'a');

}  // namespace gshard

#endif  // SERVICES_SHARDING_RULES_STANDARD_RULES_H_
