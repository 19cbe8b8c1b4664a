// Expert slicing: one expert over several devices, for experts too large for
// one. One more annotation than the model has anyway.

#ifndef SERVICES_MODEL_EXPERT_SLICES_H_
#define SERVICES_MODEL_EXPERT_SLICES_H_

#include "absl/strings/string_view.h"
#include "services/graph/program.h"

namespace gshard {

// Splits the hidden width H of the experts of a program of transformer.h along
// a mesh axis: of wi [E, M, H], bi [E, H] and wo [E, H, M], and of their
// gradients. Parameters that are split along it already stay as they are.
void SliceExperts(Program& program, absl::string_view axis);

}  // namespace gshard

#endif  // SERVICES_MODEL_EXPERT_SLICES_H_
