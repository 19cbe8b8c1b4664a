// The SPMD partitioner: turns an annotated program for one device into a single
// program for all devices (GShard, arXiv 2006.16668, section 3.3).
//
// Shardings are completed (propagation.h); every node becomes a few nodes on
// local tensors (lowering.h) with collectives between them (collective_ops.h).
// Nodes do not depend on the number of devices, and none branches on the
// device, whose index is a runtime value. A mesh with several roles gives one
// program with the nodes of all of them, and crossings between; role_split.h
// splits it.
//
// The program computes the same values as the original, up to the order of
// split sums.

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
  // An einsum operand that all devices would gather is passed around in parts
  // instead, with one product per part, if it is at least this large.
  int64_t windowed_einsum_bytes = int64_t{256} << 20;
};

// How an input, parameter or output of the whole program is laid out on the
// devices.
struct Placed {
  ValueType type;  // type of the whole tensor
  Sharding sharding;
  int role = 0;
  // See Annotation; devices exchange their tiles before use.
  std::vector<int64_t> device_order;
};

struct Partitioned {
  Program program;
  std::vector<int> roles;  // by value of the program: index into mesh.roles()
  // By value of the program: the value of the whole program that it is a form
  // of, and that form's sharding. kNoValue for intermediate steps.
  std::vector<ValueId> wholes;
  std::vector<Sharding> shardings;
  std::map<std::string, Placed> inputs;
  std::map<std::string, Placed> parameters;
  std::vector<std::pair<std::string, Placed>> outputs;  // as the program's
};

// Errors: those of GetAnnotation; Unimplemented, naming the operator, for
// operators that cannot be partitioned across roles, and for ragged rows whose
// Shard annotation reorders devices.
absl::StatusOr<Partitioned> Partition(const Program& program,
                                      const DeviceMesh& mesh,
                                      const PartitionOptions& options = {});

}  // namespace gshard

#endif  // SERVICES_PARTITION_PARTITIONER_H_
