// Memory of a device that runs its role's part of a partitioned program, by
// liveness analysis, without allocating any.
//
// Buffers live as in services/graph/executor.h: from the node that makes them
// to their last use, outputs to the end; inputs from the beginning. A reshape
// shares its operand's buffer. Parameters of int8 are in panels, and a program
// with gradients has those of bfloat16 as float32, too. Ignores the scratch
// memory of kernels, and that some kernels write into an operand's buffer.

#ifndef SERVICES_PARTITION_REPORT_MEMORY_USE_H_
#define SERVICES_PARTITION_REPORT_MEMORY_USE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "services/partition/partitioner.h"
#include "services/partition/report/symbol_sizes.h"
#include "services/sharding/device_mesh.h"

namespace gshard {

// In bytes.
struct MemoryUse {
  int64_t parameters = 0;
  int64_t gradients = 0;    // outputs "gradient/<name>"
  int64_t activations = 0;  // peak of all else
  // Peak of all together. At most the sum of the three; less if not all
  // gradients exist when activations peak.
  int64_t peak = 0;
};

// By role of the mesh.
//
// Errors: FailedPrecondition for a symbol whose size is not known.
absl::StatusOr<std::vector<MemoryUse>> MemoryOfRoles(
    const Partitioned& partitioned, const DeviceMesh& mesh,
    const SymbolSizes& sizes);

}  // namespace gshard

#endif  // SERVICES_PARTITION_REPORT_MEMORY_USE_H_
