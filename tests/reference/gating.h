// The definition of gating: Algorithm 1 in plain loops and float64, O(T * E),
// one sentence of the paper after the other. services/moe/gating.h is the fast
// one; tests hold the two to the same experts, slots and drops.

#ifndef TESTS_REFERENCE_GATING_H_
#define TESTS_REFERENCE_GATING_H_

#include "services/moe/gating.h"

namespace gshard::reference {

// As gshard::Top2Gating. REQUIRES: arguments that it would accept.
Routing Top2Gating(const Tensor& logits, const Tensor& valid,
                   const GatingOptions& options, const GatingNoise& noise);

}  // namespace gshard::reference

#endif  // TESTS_REFERENCE_GATING_H_
