#include "services/model/expert_slices.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/graph/op.h"

namespace gshard {
namespace {

// The dimension of an expert's parameter that is H; -1 if it has none.
int HiddenDim(absl::string_view parameter) {
  if (absl::EndsWith(parameter, ".moe.wi")) return 2;
  if (absl::EndsWith(parameter, ".moe.wo")) return 1;
  if (absl::EndsWith(parameter, ".moe.bi")) return 1;
  return -1;
}

void Slice(Value& value, absl::string_view name, absl::string_view axis) {
  const int dim = HiddenDim(name);
  if (dim < 0 || absl::StrContains(value.sharding, axis)) return;
  // Terms as services/sharding/annotation.h writes them.
  absl::StrAppend(&value.sharding, value.sharding.empty() ? "" : "; ", "split(",
                  dim, ", ", axis, ")");
}

}  // namespace

void SliceExperts(Program& program, absl::string_view axis) {
  for (const Node& node : program.nodes) {
    if (node.op->name != "parameter") continue;
    Slice(program.values[node.outputs[0]],
          StringAttribute(node.attributes, "name"), axis);
  }
  for (const auto& [name, value] : program.outputs) {
    if (absl::StartsWith(name, "gradient/")) {
      Slice(program.values[value], name, axis);
    }
  }
}

}  // namespace gshard
