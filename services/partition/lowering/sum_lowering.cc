// add and subtract of partial sums: added first, then reduced over the devices
// once. The gradient of a value that several products use is such a sum.

#include <algorithm>

#include "services/partition/lowering.h"
#include "services/partition/lowering/standard_lowerings.h"

namespace gshard {
namespace {

// The partial form of a value that only this node uses; null if there is none.
const LocalValue* PartialForm(const Lowering& l, ValueId value) {
  const std::vector<LocalValue>& versions = l.Versions(value);
  const auto partial = std::find_if(versions.begin(), versions.end(),
                                    [](const LocalValue& version) {
                                      return !version.sharding.partial.empty();
                                    });
  if (partial == versions.end()) return nullptr;
  int uses = 0;
  for (const Node& node : l.program.nodes) {
    uses += std::count(node.inputs.begin(), node.inputs.end(), value);
  }
  for (const auto& [name, output] : l.program.outputs) uses += output == value;
  return uses == 1 ? &*partial : nullptr;
}

LoweredValues LowerSum(Lowering& l, const Node& node) {
  if (l.Type(node.inputs[0]) != l.Type(node.inputs[1]))
    return std::vector<LocalValue>();
  const LocalValue* const a = PartialForm(l, node.inputs[0]);
  const LocalValue* const b = PartialForm(l, node.inputs[1]);
  if (a == nullptr || b == nullptr || a->sharding != b->sharding ||
      a->role != b->role) {
    return std::vector<LocalValue>();
  }
  l.SetRole(a->role);
  const LocalValue sum{.value = l.AddOne(node.op->name, {a->value, b->value}),
                       .sharding = a->sharding,
                       .role = a->role};
  return std::vector<LocalValue>{sum};
}

}  // namespace

void RegisterSumLowerings() {
  RegisterLowering("add", LowerSum);
  RegisterLowering("subtract", LowerSum);
}

}  // namespace gshard
