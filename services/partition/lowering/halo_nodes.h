// Nodes for operators that slice, shift or slide over a split dimension: each
// device gets the elements that its part of the result needs (halo.h), from its
// neighbours or, if these would be too many, from the whole.
//
// The number of nodes does not depend on the number of devices: differences
// between devices are formulas in the device's index.

#ifndef SERVICES_PARTITION_LOWERING_HALO_NODES_H_
#define SERVICES_PARTITION_LOWERING_HALO_NODES_H_

#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "services/partition/halo.h"
#include "services/partition/lowering.h"

namespace gshard {

// How a dimension of one operand moves when its factor is split.
struct Halo {
  HaloRequest request;
  HaloPlan plan;
};

// The halos of a factor that is split along these axes, in more than one part:
// one request per operand, or one for all, or none if parts do not move;
// nullopt if it cannot be split this way.
using HaloRequests =
    std::function<std::optional<std::vector<HaloRequest>>(const Axes& axes)>;

// Axes for the factors of a node.
struct HaloCuts {
  OpRule rule;
  Lowering::FactorAxes axes;
  // For factors in `moved` that are split in more than one part.
  std::map<int, std::vector<Halo>> halos;

  // Null if the factor is not split, or its parts do not move.
  const Halo* Find(int factor, size_t operand) const;
};

// Chooses axes like Lowering::ChooseAxes. Factors in `moved` without a plan
// stay whole, including those on elastic axes.
HaloCuts ChooseCuts(const Lowering& l, const Node& node, OpRule rule,
                    const std::map<int, HaloRequests>& moved);

// Whether an exchange with neighbours is the cheapest way to get a part: at
// most two on each side send, in total no more than the rest of the whole.
bool IsNear(const HaloPlan& plan, int64_t parts);

// Whether a value has a version that does not split dimension `dim`.
bool HasUncutVersion(const Lowering& l, ValueId value, size_t dim);

// Operand i, with each dimension that has a halo replaced by the slice of step
// 4 of halo.h: exchanged if that is near, else, or if the whole is available,
// cut from the whole. Elements outside the dimension are zeros if some result
// reads them and `mask`, else arbitrary.
absl::StatusOr<ValueId> HaloOperand(Lowering& l, const Node& node,
                                    const HaloCuts& cuts, size_t i, bool mask);

// Steps 1 to 4 for one dimension of a local tensor.
ValueId ExchangeHalo(Lowering& l, ValueId x, int dim, const Axes& axes,
                     const HaloPlan& plan, bool mask);

// The form's value, i64[], at this device's index along the axes.
ValueId FormNode(Lowering& l, const Axes& axes, const LinearForm& form);
// factor * form + add.
ValueId FormNode(Lowering& l, const Axes& axes, const RemainderForm& form,
                 int64_t factor = 1, int64_t add = 0);

// `size` elements of a dimension, starting at `start`, i64[].
ValueId DynamicSliceNode(Lowering& l, ValueId x, int dim, ValueId start,
                         int64_t size);

// Result 0 of the node in the sharding given by the axes.
//
// Errors: Internal if its shape differs.
LoweredValues HaloResult(Lowering& l, const Node& node, const HaloCuts& cuts,
                         ValueId value);

}  // namespace gshard

#endif  // SERVICES_PARTITION_LOWERING_HALO_NODES_H_
