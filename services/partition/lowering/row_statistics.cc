#include "services/partition/lowering/row_statistics.h"

#include <numeric>

#include "services/base/status_macros.h"

namespace gshard {

RowStatistics::RowStatistics(Lowering& l, const Node& node)
    : l_(l),
      node_(node),
      rule_(RuleOf(l.program, node)),
      axes_(l.ChooseAxes(node, rule_)),
      shape_(l.Type(node.inputs[0]).shape),
      sharding_(l.ShardingFor(rule_.operands[0], rule_, axes_)) {
  l.SetRole(axes_.role);
}

bool RowStatistics::IsSplit() const {
  return l_.mesh.Parts(sharding_.dims.back().axes) > 1;
}

absl::StatusOr<ValueId> RowStatistics::Operand(size_t i, double identity) {
  const ValueId value = node_.inputs[i];
  const Sharding sharding = l_.ShardingFor(rule_.operands[i], rule_, axes_);
  const int last = rule_.operands[0].back().front();
  ASSIGN_OR_RETURN(ValueId x, l_.Reshard(value, sharding, axes_.role));
  for (size_t d = 0; d < sharding.dims.size(); ++d) {
    const bool is_last = rule_.operands[i][d].front() == last;
    x = l_.MaskPadding(x, l_.Type(value).shape, sharding, d,
                       is_last ? identity : 0.0);
  }
  l_.SetRole(axes_.role);
  return x;
}

ValueId RowStatistics::Mask(ValueId x) {
  return l_.MaskPadding(x, shape_, sharding_, shape_.size() - 1, 0.0);
}

ValueId RowStatistics::Reduce(const char* op, ValueId x, Reduction reduction) {
  const ValueId local = l_.AddOne(
      op, {x},
      {{"dims",
        std::vector<int64_t>{static_cast<int64_t>(shape_.size()) - 1}}});
  return l_.AllReduce(local, sharding_.dims.back().axes, reduction);
}

ValueId RowStatistics::SumOfRows(ValueId x) {
  std::vector<int64_t> dims(shape_.size() - 1);
  std::iota(dims.begin(), dims.end(), 0);
  return l_.AddOne("reduce_sum", {x}, {{"dims", std::move(dims)}});
}

ValueId RowStatistics::Spread(ValueId statistic) {
  return l_.AddOne("broadcast", {statistic},
                   {{"shape", LocalShape(shape_, sharding_, l_.mesh)},
                    {"dims", std::vector<int64_t>{
                                 static_cast<int64_t>(shape_.size()) - 1}}});
}

LocalValue RowStatistics::Result(size_t i, ValueId value) const {
  Sharding sharding = l_.ShardingFor(rule_.results[i], rule_, axes_);
  // Row statistics have been summed.
  const int last = rule_.operands[0].back().front();
  for (const int a : l_.MissingAxes(rule_.results[i], rule_, axes_)) {
    if (!Contains(axes_.of[last], a)) sharding.partial.push_back(a);
  }
  return {.value = value, .sharding = sharding, .role = axes_.role};
}

}  // namespace gshard
