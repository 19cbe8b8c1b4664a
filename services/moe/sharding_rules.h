// How the MoE operators are partitioned (services/sharding/rule.h).
//
//   top2_gating        by token, at the ends of groups; all experts' logits
//   plan_dispatch      by token, likewise; its rows lie by token, its group
//                      sizes count the device's own
//   dispatch, combine  by token, and along the width
//
// Between dispatch and the experts' products rows move from the devices of
// their tokens to those of their experts, and back before combine: the two
// all-to-alls of Algorithm 2 (GShard, arXiv 2006.16668). Their gradients are
// the same two.

#ifndef SERVICES_MOE_SHARDING_RULES_H_
#define SERVICES_MOE_SHARDING_RULES_H_

namespace gshard {

// Registers rules and lowerings; further calls have no effect.
void RegisterMoeSharding();

}  // namespace gshard

#endif  // SERVICES_MOE_SHARDING_RULES_H_
