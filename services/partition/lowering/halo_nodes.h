// Nodes for operators of which a dimension is cut, shifted or slid over: each
// device gets the elements that its part of the result is made of (halo.h),
// from its neighbours or, where these would have to be many, from the whole.
//
// The number of nodes does not depend on the number of devices: what differs
// between devices is a formula in the device's index.

#ifndef SERVICES_PARTITION_LOWERING_HALO_NODES_H_
#define SERVICES_PARTITION_LOWERING_HALO_NODES_H_

#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "services/partition/halo.h"
#include "services/partition/lowering.h"

namespace gshard {

// How a dimension of one operand moves when its factor is cut.
struct Halo {
  HaloRequest request;
  HaloPlan plan;
};

// What becomes of a factor if it is cut along these axes, more than one part:
// one request per operand, or one for all, or none if parts stay where they
// are; nullopt if it cannot be cut so.
using HaloRequests =
    std::function<std::optional<std::vector<HaloRequest>>(const Axes& axes)>;

// Axes for the factors of a node.
struct HaloCuts {
  OpRule rule;
  Lowering::FactorAxes axes;
  // Of factors that were asked about and are cut in more than one part.
  std::map<int, std::vector<Halo>> halos;

  // Null if the factor is not cut, or its parts stay where they are.
  const Halo* Find(int factor, size_t operand) const;
};

// Chooses axes as Lowering::ChooseAxes does. Factors in `moved` for which there
// is no plan stay whole, elastic axes among them.
HaloCuts ChooseCuts(const Lowering& l, const Node& node, OpRule rule,
                    const std::map<int, HaloRequests>& moved);

// Whether an exchange with neighbours is the cheapest way to a part: at most
// two to each side send, all in all no more than the rest of the whole.
bool IsNear(const HaloPlan& plan, int64_t parts);

// Whether a value is at hand in a form that does not cut dimension `dim`.
bool HasUncutVersion(const Lowering& l, ValueId value, size_t dim);

// Operand i, with each dimension that has a halo replaced by the slice of step
// 4 of halo.h: exchanged if that is near, cut from the whole if not or if the
// whole is at hand. Elements outside of the dimension are zeros if some result
// sees them and `mask`, else arbitrary.
absl::StatusOr<ValueId> HaloOperand(Lowering& l, const Node& node,
                                    const HaloCuts& cuts, size_t i, bool mask);

// Steps 1 to 4 for one dimension of a local tensor.
ValueId ExchangeHalo(Lowering& l, ValueId x, int dim, const Axes& axes,
                     const HaloPlan& plan, bool mask);

// i64[]: a form at this device's index along the axes.
ValueId FormNode(Lowering& l, const Axes& axes, const LinearForm& form);
// factor * form + add.
ValueId FormNode(Lowering& l, const Axes& axes, const RemainderForm& form,
                 int64_t factor = 1, int64_t add = 0);

// `size` elements of a dimension from i64[] `start` on.
ValueId DynamicSliceNode(Lowering& l, ValueId x, int dim, ValueId start,
                         int64_t size);

// Result 0 of the node in the sharding that the axes give it.
//
// Errors: Internal if its shape is another.
absl::StatusOr<std::vector<LocalValue>> HaloResult(Lowering& l,
                                                   const Node& node,
                                                   const HaloCuts& cuts,
                                                   ValueId value);

}  // namespace gshard

#endif  // SERVICES_PARTITION_LOWERING_HALO_NODES_H_
