// Sizes of the symbols of the model's programs in a step, for reports on
// partitioned programs.

#ifndef SERVICES_MODEL_STEP_SIZES_H_
#define SERVICES_MODEL_STEP_SIZES_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "services/graph/program.h"
#include "services/sharding/device_mesh.h"
#include "services/partition/report/symbol_sizes.h"

namespace gshard {

struct StepSizes {
  int64_t sentences = 1;   // B, over all routers
  int64_t positions = 1;   // Ls, Lt and positions in a cache
  int64_t hypotheses = 1;  // K
};

// Sizes of the symbols of a program of transformer.h before it is partitioned.
// An MoE layer has two rows per token: no token is padding and none overflows.
// Groups are those of the gate.
//
// Errors: FailedPrecondition for a program with other symbols in a gate or a
// dispatch.
absl::StatusOr<SymbolSizes> SizesOfStep(const Program& program,
                                        const DeviceMesh& mesh,
                                        const StepSizes& step);

}  // namespace gshard

#endif  // SERVICES_MODEL_STEP_SIZES_H_
