// Executor: runs a program.
//
// Nodes run in the program's order on the calling thread; a buffer is freed or
// handed to the next kernel at its last use. An executor is immutable after
// construction and may be run from several threads at once.

#ifndef SERVICES_GRAPH_EXECUTOR_H_
#define SERVICES_GRAPH_EXECUTOR_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "services/graph/op.h"
#include "services/graph/program.h"

namespace gshard {

using TensorMap = absl::flat_hash_map<std::string, Tensor>;

struct RunOptions {
  // For programs with call_segment nodes. Not owned.
  SegmentRunner* segments = nullptr;
  // For programs with collectives. Not owned.
  DeviceGroups* devices = nullptr;
  // Uses the operators' slow references where they have one.
  bool reference = false;
  // Called before each node; true stops the run with CANCELLED.
  std::function<bool()> cancelled = nullptr;
};

class Executor {
 public:
  explicit Executor(Program program);

  // Runs the program once. `inputs` and `parameters` hold at least what the
  // program names. A tensor that somebody else still holds is never
  // overwritten; one that is moved in with `inputs` may be, which is how a
  // cache is updated in place.
  //
  // A parameter that is f32 where the program says bf16 is rounded, at every
  // run: see RoundParameters.
  //
  // Returns the outputs in the program's order.
  //
  // Errors: NotFound for an input or parameter that is missing;
  // InvalidArgument for one of the wrong type or shape; ResourceExhausted for
  // results that memory cannot hold; whatever a kernel reports, with the node's
  // number and operator in front.
  absl::StatusOr<std::vector<Tensor>> Run(TensorMap inputs,
                                          const TensorMap& parameters,
                                          const RunOptions& options = {}) const;

  // Rounds those of `parameters` that the program has as bf16.
  void RoundParameters(TensorMap& parameters) const;

  const Program& program() const { return program_; }

 private:
  Program program_;
  // For each node, the values that are dead after it.
  std::vector<std::vector<ValueId>> dead_after_;
  // For each node, the operands whose last use it is and that stand once.
  std::vector<std::vector<bool>> last_use_;
};

}  // namespace gshard

#endif  // SERVICES_GRAPH_EXECUTOR_H_
