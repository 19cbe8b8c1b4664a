// Operators of partitioned programs that depend on the device's index but do
// not communicate. See collective_ops.h, which registers them.

#ifndef SERVICES_PARTITION_OPS_LOCAL_PART_OPS_H_
#define SERVICES_PARTITION_OPS_LOCAL_PART_OPS_H_

#include <vector>

#include "services/graph/op.h"

namespace gshard {

std::vector<OpDef> LocalPartOps();

}  // namespace gshard

#endif  // SERVICES_PARTITION_OPS_LOCAL_PART_OPS_H_
