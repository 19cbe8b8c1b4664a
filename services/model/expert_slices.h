// Expert slicing: one expert over several devices, for experts too large for
// one. One additional annotation on the model.

#ifndef SERVICES_MODEL_EXPERT_SLICES_H_
#define SERVICES_MODEL_EXPERT_SLICES_H_

#include "absl/strings/string_view.h"
#include "services/graph/program.h"

namespace gshard {

// Splits the experts' hidden width H along a mesh axis in a program of
// transformer.h: in wi [E, M, H], bi [E, H] and wo [E, H, M], and in their
// gradients. Parameters that are already split along it stay unchanged.
void SliceExperts(Program& program, absl::string_view axis);

}  // namespace gshard

#endif  // SERVICES_MODEL_EXPERT_SLICES_H_
