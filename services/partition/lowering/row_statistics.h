// Nodes for operators over the last dimension, when it is split: statistics of
// rows, summed over the devices, and back to the rows' elements.

#ifndef SERVICES_PARTITION_LOWERING_ROW_STATISTICS_H_
#define SERVICES_PARTITION_LOWERING_ROW_STATISTICS_H_

#include "services/partition/lowering.h"

namespace gshard {

// A node over the last dimension of its operand 0, whose shape that of its
// other large operands is.
class RowStatistics {
 public:
  RowStatistics(Lowering& l, const Node& node);

  const Lowering::FactorAxes& axes() const { return axes_; }
  const OpRule& rule() const { return rule_; }
  // Whether the last dimension is split in more than one part. If not, the
  // operator runs as it is.
  bool IsSplit() const;
  // Of the rows' elements.
  const Sharding& sharding() const { return sharding_; }

  // Operand i, its padding along the last dimension set to `identity`, that
  // along others to 0.
  absl::StatusOr<ValueId> Operand(size_t i, double identity = 0.0);
  // x with padding along the last dimension set to 0.
  ValueId Mask(ValueId x);

  // Over the last dimension, of all devices: [..., z] -> [...].
  ValueId Sum(ValueId x) { return Reduce("reduce_sum", x, Reduction::kSum); }
  ValueId Max(ValueId x) { return Reduce("reduce_max", x, Reduction::kMax); }
  // Over the others, of this device: [..., z] -> [z].
  ValueId SumOfRows(ValueId x);
  // [...] -> [..., z].
  ValueId Spread(ValueId statistic);

  // A result in the sharding that the rule gives it.
  LocalValue Result(size_t i, ValueId value) const;

 private:
  ValueId Reduce(const char* op, ValueId x, Reduction reduction);

  Lowering& l_;
  const Node& node_;
  const OpRule rule_;
  const Lowering::FactorAxes axes_;
  const Shape& shape_;
  const Sharding sharding_;
};

}  // namespace gshard

#endif  // SERVICES_PARTITION_LOWERING_ROW_STATISTICS_H_
