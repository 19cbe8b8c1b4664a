// The SPMD partitioner: from an annotated program for one device to the one
// program that all devices run (GShard, arXiv 2006.16668, section 3.3).
//
// Shardings are completed (propagation.h); every node becomes a few nodes on
// local tensors (lowering.h) with collectives between them (collective_ops.h).
// Nodes do not depend on the number of devices, nor does any branch on the
// device: its index enters as a number. A mesh with several roles gives one
// program with the nodes of all of them, and crossings between; role_split.h
// parts it.
//
// On values the program is what the whole one is, up to the order of sums
// that are split.

#ifndef SERVICES_PARTITION_PARTITIONER_H_
#define SERVICES_PARTITION_PARTITIONER_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "services/graph/program.h"
#include "services/sharding/device_mesh.h"
#include "services/sharding/sharding.h"

namespace gshard {

struct PartitionOptions {
  // An operand of einsum that all devices would gather is passed around in
  // parts instead, one product per part, if it is at least this large.
  int64_t windowed_einsum_bytes = int64_t{256} << 20;
};

// How an input, a parameter or an output of the whole program lies on the
// devices.
struct Placed {
  ValueType type;  // whole
  Sharding sharding;
  int role = 0;
  // See Annotation; devices swap their tiles before use.
  std::vector<int64_t> device_order;
};

struct Partitioned {
  Program program;
  std::vector<int> roles;  // by value of the program: index into mesh.roles()
  // By value of the program: which value of the whole one it is a form of, and
  // how that form lies. kNoValue for steps between two forms.
  std::vector<ValueId> wholes;
  std::vector<Sharding> shardings;
  std::map<std::string, Placed> inputs;
  std::map<std::string, Placed> parameters;
  std::vector<std::pair<std::string, Placed>> outputs;  // as the program's
};

// Errors: those of GetAnnotation; Unimplemented, naming the operator, for what
// cannot be partitioned across roles, and for ragged rows that Shard puts on
// devices in another order.
absl::StatusOr<Partitioned> Partition(const Program& program,
                                      const DeviceMesh& mesh,
                                      const PartitionOptions& options = {});

}  // namespace gshard

#endif  // SERVICES_PARTITION_PARTITIONER_H_
