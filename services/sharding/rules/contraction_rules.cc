// einsum: its equation is its rule.

#include "absl/strings/ascii.h"
#include "services/base/check.h"
#include "services/ops/einsum.h"
#include "services/sharding/rules/standard_rules.h"

namespace gshard {

NamedRules ContractionRules() {
  return {{"einsum", [](const Program&, const Node& node) {
             const absl::StatusOr<EinsumSpec> spec =
                 ParseEinsum(StringAttribute(node.attributes, "equation"));
             CHECK(spec.ok());
             return MakeRule(absl::AsciiStrToLower(spec->ToString()));
           }}};
}

}  // namespace gshard
