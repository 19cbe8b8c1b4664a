// enter_manual and leave_manual: from a sharding to the devices' own parts, and
// back. Values are only resharded.

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "services/base/status_macros.h"
#include "services/partition/lowering.h"
#include "services/partition/lowering/standard_lowerings.h"

namespace gshard {
namespace {

absl::StatusOr<Sharding> ShardingOf(const Lowering& l, const Node& node) {
  Sharding sharding;
  for (const absl::string_view axes :
       absl::StrSplit(StringAttribute(node.attributes, "axes"), ';')) {
    ASSIGN_OR_RETURN(Axes found, l.mesh.FindAll(axes));
    sharding.dims.push_back({.axes = std::move(found), .token_axes = {}});
  }
  sharding.dims.resize(l.Type(node.inputs[0]).shape.size());
  return sharding;
}

LoweredValues Enter(Lowering& l, const Node& node) {
  ASSIGN_OR_RETURN(const Sharding sharding, ShardingOf(l, node));
  const ValueId x = node.inputs[0];
  const Shape local = LocalShape(l.Type(x).shape, sharding, l.mesh);
  if (local != l.Type(node.outputs[0]).shape) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a device has ", ShapeToString(local), ", the program was written for ",
        l.Type(node.outputs[0]).ToString()));
  }
  ASSIGN_OR_RETURN(const ValueId entered, l.Reshard(x, sharding));
  return std::vector<LocalValue>{
      {.value = entered, .sharding = Sharding::Replicated(local.size())}};
}

LoweredValues Leave(Lowering& l, const Node& node) {
  ASSIGN_OR_RETURN(Sharding sharding, ShardingOf(l, node));
  if (IntAttribute(node.attributes, "sum") != 0) {
    for (const int a : l.mesh.AxesOfRole(0)) {
      if (!sharding.Uses(a)) sharding.partial.push_back(a);
    }
  }
  return std::vector<LocalValue>{
      {.value = l.Canonical(node.inputs[0]).value, .sharding = sharding}};
}

}  // namespace

void RegisterManualLowerings() {
  RegisterLowering("enter_manual", Enter);
  RegisterLowering("leave_manual", Leave);
}

}  // namespace gshard
