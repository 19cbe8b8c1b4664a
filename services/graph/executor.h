// Executor: runs a program on a back end.
//
// Kernels, names and last uses are resolved at construction. Nodes run in the
// program's order on the calling thread; a buffer is freed or handed to the
// next kernel at its last use. An executor is immutable after construction and
// may run on several threads at once.

#ifndef SERVICES_GRAPH_EXECUTOR_H_
#define SERVICES_GRAPH_EXECUTOR_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/graph/op.h"
#include "services/graph/program.h"
#include "services/graph/run_context.h"
#include "services/graph/weight_forms.h"

namespace gshard {

using TensorMap = absl::flat_hash_map<std::string, Tensor>;

struct RunOptions {
  RunContext context = {};
  // Called before each node; true stops the run with CANCELLED.
  std::function<bool()> cancelled = nullptr;
};

class Executor {
 public:
  explicit Executor(Program program, Backend backend = Backend::kCpu);

  // Unimplemented, naming the operator and the back end, if the back end lacks
  // a kernel for an operator of the program, or naming the parameter if that is
  // i8 and the back end is the reference; InvalidArgument if an i8 parameter is
  // used other than in products and lookups. Run() then fails with the same
  // error.
  const absl::Status& status() const { return status_; }

  // Runs the program once. `inputs` and `parameters` contain at least the names
  // in the program. A tensor that somebody else still holds is never
  // overwritten; one that is moved into `inputs` may be, which is how a cache
  // is updated in place.
  //
  // A parameter that is f32 where the program declares bf16 or i8 is rounded,
  // at every run, unless it is on a device: see weight_forms().
  //
  // Returns the outputs in the program's order.
  //
  // Errors: that of status(); NotFound for a missing input or parameter;
  // InvalidArgument for one of the wrong type, shape or form; ResourceExhausted
  // if there is no memory for results; kernel errors, prefixed with the node's
  // number and operator.
  absl::StatusOr<std::vector<Tensor>> Run(TensorMap inputs,
                                          const TensorMap& parameters,
                                          const RunOptions& options = {}) const;

  // The program's parameters and the forms that its kernels take; those of f32
  // and bf16 are accepted row-major, too, and only so by other back ends than
  // the CPU.
  const WeightForms& weight_forms() const { return weight_forms_; }

  const Program& program() const { return program_; }

 private:
  enum class Source { kKernel, kInput, kParameter };

  // One resolved node.
  struct Step {
    Source source = Source::kKernel;
    const Kernel* kernel = nullptr;       // if Source::kKernel
    std::string name;                     // input or parameter name
    WeightForm form;                      // if a parameter
    std::vector<ValueType> result_types;  // as the program states them
    std::vector<bool> takes;              // operands at their last use
    std::vector<ValueId> dead;            // values unused afterwards
  };

  // The node's name in errors.
  std::string Where(size_t node) const;

  static absl::StatusOr<Tensor> FeedParameter(const Step& step,
                                              const TensorMap& parameters);

  Program program_;
  Backend backend_;
  WeightForms weight_forms_;
  absl::Status status_;
  std::vector<Step> steps_;  // one per node
};

// Rounds the parameters on the host that are bf16 in `weights`; they stay
// row-major.
void CastToBf16(const WeightForms& weights, TensorMap& parameters);

}  // namespace gshard

#endif  // SERVICES_GRAPH_EXECUTOR_H_
