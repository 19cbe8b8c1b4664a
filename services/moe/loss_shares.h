// A device's shares of the gating losses, which are means over all devices'
// tokens. Operators that sharding_rules.h inserts into partitioned programs:
//
//   loss_counts(expert i32[T, 2])  attribute group_size
//       -> f32[2]: groups that hold a valid token, valid tokens
//   loss_shares(counts, totals)    f32[2] each
//       -> f32[], f32[]: counts / totals, 0 where the total is 0

#ifndef SERVICES_MOE_LOSS_SHARES_H_
#define SERVICES_MOE_LOSS_SHARES_H_

#include <vector>

#include "services/graph/op.h"

namespace gshard {

// Results of loss_shares: the weights of a device's balance loss and z-loss in
// the totals.
struct LossShares {
  ValueId groups = kNoValue;
  ValueId tokens = kNoValue;
};

std::vector<OpDef> LossShareOps();

}  // namespace gshard

#endif  // SERVICES_MOE_LOSS_SHARES_H_
