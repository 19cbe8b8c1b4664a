// Reference for gating: Algorithm 1 of the paper, line by line, in plain loops
// and float64, O(T * E). Tests compare experts, slots and drops with the fast
// services/moe/gating.h.

#ifndef TESTS_REFERENCE_GATING_H_
#define TESTS_REFERENCE_GATING_H_

#include "services/moe/gating.h"

namespace gshard::reference {

// REQUIRES: arguments that gshard::Top2Gating accepts.
Routing Top2Gating(const Tensor& logits, const Tensor& valid,
                   const GatingOptions& options, const GatingNoise& noise);

}  // namespace gshard::reference

#endif  // TESTS_REFERENCE_GATING_H_
