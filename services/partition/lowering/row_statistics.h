// Nodes for operators over a split last dimension: statistics of rows, summed
// over the devices, and broadcast back to the rows' elements.

#ifndef SERVICES_PARTITION_LOWERING_ROW_STATISTICS_H_
#define SERVICES_PARTITION_LOWERING_ROW_STATISTICS_H_

#include "services/partition/lowering.h"

namespace gshard {

// A node over the last dimension of its operand 0, whose shape its other large
// operands share.
class RowStatistics {
 public:
  RowStatistics(Lowering& l, const Node& node);

  const Lowering::FactorAxes& axes() const { return axes_; }
  const OpRule& rule() const { return rule_; }
  // Whether the last dimension is split in more than one part. If not, the
  // operator runs unchanged.
  bool IsSplit() const;

  // Operand i, with padding set to `identity` along the last dimension and to 0
  // along others.
  absl::StatusOr<ValueId> Operand(size_t i, double identity = 0.0);
  // x with padding along the last dimension set to 0.
  ValueId Mask(ValueId x);

  // Reduces the last dimension, over all devices: [..., z] -> [...].
  ValueId Sum(ValueId x) { return Reduce("reduce_sum", x, Reduction::kSum); }
  ValueId Max(ValueId x) { return Reduce("reduce_max", x, Reduction::kMax); }
  // Sums the other dimensions, on this device: [..., z] -> [z].
  ValueId SumOfRows(ValueId x);
  // [...] -> [..., z].
  ValueId Spread(ValueId statistic);

  // A result in the sharding given by the rule.
  LocalValue Result(size_t i, ValueId value) const;

 private:
  ValueId Reduce(const char* op, ValueId x, Reduction reduction);

  Lowering& l_;
  const Node& node_;
  const OpRule rule_;
  const Lowering::FactorAxes axes_;
  const Shape& shape_;
  const Sharding sharding_;  // of the rows' elements
};

}  // namespace gshard

#endif  // SERVICES_PARTITION_LOWERING_ROW_STATISTICS_H_
