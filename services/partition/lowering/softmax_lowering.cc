// softmax and softmax_gradient of a split last dimension: row maxima and sums
// are reduced over the devices, the rows stay where they are.

#include <limits>

#include "services/base/status_macros.h"
#include "services/partition/lowering/row_statistics.h"
#include "services/partition/lowering/standard_lowerings.h"

namespace gshard {
namespace {

LoweredValues Softmax(Lowering& l, const Node& node) {
  RowStatistics rows(l, node);
  if (!rows.IsSplit()) return l.LowerByRule(node, rows.rule(), rows.axes());
  // Padding becomes exp(-infinity), which adds nothing.
  ASSIGN_OR_RETURN(const ValueId x,
                   rows.Operand(0, std::numeric_limits<float>::lowest()));
  const ValueId max = rows.Max(x);
  const ValueId e =
      l.AddOne("exp", {l.AddOne("subtract", {x, rows.Spread(max)})});
  const ValueId sum = rows.Sum(e);
  return std::vector<LocalValue>{
      rows.Result(0, l.AddOne("divide", {e, rows.Spread(sum)}))};
}

LoweredValues SoftmaxGradient(Lowering& l, const Node& node) {
  RowStatistics rows(l, node);
  if (!rows.IsSplit()) return l.LowerByRule(node, rows.rule(), rows.axes());
  ASSIGN_OR_RETURN(const ValueId y, rows.Operand(0));
  ASSIGN_OR_RETURN(const ValueId dy, rows.Operand(1));
  const ValueId sum = rows.Sum(l.AddOne("multiply", {y, dy}));
  const ValueId centred = l.AddOne("subtract", {dy, rows.Spread(sum)});
  return std::vector<LocalValue>{
      rows.Result(0, l.AddOne("multiply", {y, centred}))};
}

}  // namespace

void RegisterSoftmaxLowerings() {
  RegisterLowering("softmax", Softmax);
  RegisterLowering("softmax_gradient", SoftmaxGradient);
}

}  // namespace gshard
