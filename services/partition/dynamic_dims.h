// Binding of dynamic dimensions before a device creates a tensor.
//
// broadcast and constant give their results dimensions that no operand has. If
// such a size is a symbol, an earlier node must have bound it in the form that
// the device needs: an input that is split along "router" binds B_by_router,
// not B.

#ifndef SERVICES_PARTITION_DYNAMIC_DIMS_H_
#define SERVICES_PARTITION_DYNAMIC_DIMS_H_

#include <vector>

#include "absl/status/status.h"
#include "services/partition/lowering.h"

namespace gshard {

// Ensures that all symbols are bound where a node with these (local) operands
// creates a tensor of whole shape `shape` in this sharding. A value that binds
// a size is kept in the program even if unused (Lowering::kept); if there is
// none, a vector of that size is resharded.
//
// Symbols that no earlier value has are left to the operator.
absl::Status BindDynamicDims(Lowering& l, const std::vector<ValueId>& operands,
                             const Shape& shape, const Sharding& sharding);

}  // namespace gshard

#endif  // SERVICES_PARTITION_DYNAMIC_DIMS_H_
