// Communication between the devices of a partitioned program in one step.
//
// Bytes are those that one device sends, the same on all devices of a role, or
// the maximum where shares differ. With x the operand on the device and n
// devices along the axes (services/collectives/collectives.h):
//
//   all_reduce                       2 (n - 1) / n of x
//   reduce_scatter, all_to_all       (n - 1) / n of x
//   all_gather                       n - 1 times x, (n - 1) / n of the result
//   permute                          x to each device that takes it
//   shift                            x
//   ragged_all_to_all, .._back       (n - 1) / n of the rows
//   ragged_all_gather,               n - 1 times the rows
//     rows_all_gather
//   send_rows, return_rows           the rows
//   send_whole                       x to each device of the other role
//
// Group sizes sent with rows, 4 bytes per expert, are omitted. Rows are assumed
// to be spread evenly over experts.

#ifndef SERVICES_PARTITION_REPORT_COMMUNICATION_H_
#define SERVICES_PARTITION_REPORT_COMMUNICATION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/partition/partitioner.h"
#include "services/partition/report/node_place.h"
#include "services/partition/report/symbol_sizes.h"
#include "services/sharding/device_mesh.h"

namespace gshard {

// A collective or a crossing between roles.
struct Communication {
  int32_t node = 0;       // its index in the program
  std::string kind;       // the operator's name
  std::string axes = "";  // "" for a crossing
  int64_t group = 1;      // devices along the axes; of a crossing, those that
                          // receive
  int role = 0;           // role of the sender
  ValueType operand;      // the tensor that is sent
  NodePlace place;
  int64_t bytes = 0;
};

// All communication of the program, in its order.
//
// Errors: FailedPrecondition for a symbol whose size is not known.
absl::StatusOr<std::vector<Communication>> ListCommunication(
    const Partitioned& partitioned, const DeviceMesh& mesh,
    const SymbolSizes& sizes);

// Totals of one kind, role and direction.
struct CommunicationTotal {
  std::string kind;
  int role = 0;
  bool backward = false;
  int64_t count = 0;
  int64_t bytes = 0;  // sent per device of the role
};

// Sorted by role, direction and kind.
std::vector<CommunicationTotal> SumByKind(
    const std::vector<Communication>& all);

}  // namespace gshard

#endif  // SERVICES_PARTITION_REPORT_COMMUNICATION_H_
