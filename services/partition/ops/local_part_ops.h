// The operators of partitioned programs that know which device they run on but
// exchange nothing. See collective_ops.h, which registers them.

#ifndef SERVICES_PARTITION_OPS_LOCAL_PART_OPS_H_
#define SERVICES_PARTITION_OPS_LOCAL_PART_OPS_H_

#include <vector>

#include "services/graph/op.h"

namespace gshard {

std::vector<OpDef> LocalPartOps();

}  // namespace gshard

#endif  // SERVICES_PARTITION_OPS_LOCAL_PART_OPS_H_
