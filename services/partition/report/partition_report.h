// PartitionReport: statistics of a partitioned program.
//
// Parameters and nodes are exact; bytes sent and memory follow from the
// symbols' sizes in a step, see communication.h and memory_use.h. Nothing is
// allocated, so a report on 10^12 parameters costs no more than one on 10^6.
// Pure functions.

#ifndef SERVICES_PARTITION_REPORT_PARTITION_REPORT_H_
#define SERVICES_PARTITION_REPORT_PARTITION_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/partition/partitioner.h"
#include "services/partition/report/communication.h"
#include "services/partition/report/memory_use.h"
#include "services/partition/report/symbol_sizes.h"
#include "services/sharding/device_mesh.h"

namespace gshard {

struct RoleReport {
  std::string name;
  int64_t devices = 0;     // 0: elastic
  int64_t nodes = 0;       // a crossing counts where it arrives
  int64_t parameters = 0;  // each counted once, however many devices have it
  int64_t parameters_per_device = 0;  // maximum; with padding
  MemoryUse memory;                   // per device
};

struct PartitionReport {
  std::vector<RoleReport> roles;  // as the mesh's
  std::vector<Communication> communication;

  int64_t TotalParameters() const;
};

// Errors: FailedPrecondition for a symbol whose size is not known.
absl::StatusOr<PartitionReport> ReportPartition(const Partitioned& partitioned,
                                                const DeviceMesh& mesh,
                                                const SymbolSizes& sizes);

// The lines of ProgramToText (services/graph/text.h) that belong to a role,
// including crossings to or from it; numbering is that of the joint program, so
// that both ends of a crossing can be found.
std::string RoleToText(const Partitioned& partitioned, int role);

}  // namespace gshard

#endif  // SERVICES_PARTITION_REPORT_PARTITION_REPORT_H_
