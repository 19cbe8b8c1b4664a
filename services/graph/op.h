// Operators: the semantics of each kind of node, and its kernels.
//
// An operator is one OpDef: how it checks its operands and derives the types of
// its results, how a CPU computes it, and its gradient. Rooms register their
// operators, and kernels for other back ends, in one registry; nothing else in
// this room knows any operator by name.

#ifndef SERVICES_GRAPH_OP_H_
#define SERVICES_GRAPH_OP_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "services/graph/dim.h"
#include "services/graph/program.h"
#include "services/graph/run_context.h"
#include "services/tensor/tensor.h"

namespace gshard {

class Builder;

// Where a program's kernels run.
enum class Backend {
  kCpu,
  kReference,  // simple and slow, for tests: tests/reference
  kCuda,
};
absl::string_view BackendName(Backend backend);

// What a kernel sees of one execution of its node.
struct KernelContext {
  const Node& node;
  const Bindings& bindings;
  // Declared types of the results.
  absl::Span<const ValueType> result_types;
  // Operands. A kernel may move from one; at its last use the kernel is then
  // the only holder of the buffer and can overwrite it.
  absl::Span<Tensor> operands;
  // Output: one per result.
  absl::Span<Tensor> results;
  const RunContext& run;
  Backend backend = Backend::kCpu;

  Tensor Take(int i) { return std::move(operands[i]); }
  const Attributes& attributes() const { return node.attributes; }
  absl::StatusOr<Dims> ResultDims(int i) const {
    return bindings.Resolve(result_types[i].shape);
  }
};

// Computes the results. Operands' element types and shapes have been checked
// against the program; values (ids, lengths) have not.
using Kernel = std::function<absl::Status(KernelContext&)>;

// What an operator's `infer` and `gradient` return.
using ResultTypes = absl::StatusOr<std::vector<ValueType>>;
using OperandGradients = absl::StatusOr<std::vector<ValueId>>;

struct OpDef {
  std::string name;

  // Infers the types of the results. Errors: InvalidArgument saying what was
  // expected and what came, for operands and attributes alike; the builder
  // prefixes the operator's name.
  std::function<ResultTypes(absl::Span<const ValueType> operands,
                            const Attributes& attributes)>
      infer;

  // The CPU kernel; other back ends' are registered separately. Absent for
  // inputs and parameters, which the executor feeds.
  Kernel kernel;

  // Adds to the builder's program the gradients of the operands, given those of
  // the results (kNoValue where nothing depends on a result), and returns one
  // per operand, kNoValue where there is none. Absent for operators without a
  // gradient. A gradient has the shape of its value and is f32 or, for a bf16
  // value, either.
  std::function<OperandGradients(Builder& builder, const Node& node,
                                 absl::Span<const ValueId> result_gradients)>
      gradient = nullptr;
};

// Adds operators to the registry; a name that exists is ignored. Thread-safe.
void RegisterOps(std::vector<OpDef> ops);

// Null if there is none. This room's operators are always registered.
const OpDef* FindOp(absl::string_view name);

// Adds a back end's kernels by operator name; one that exists is ignored.
// Thread-safe.
void RegisterKernels(Backend backend, std::map<std::string, Kernel> kernels);

// Null if there is none. The pointer stays valid.
const Kernel* FindKernel(absl::string_view op, Backend backend);

// All names, sorted.
std::vector<std::string> OpNames();

// Checks for `infer` functions.
absl::Status ExpectOperands(absl::Span<const ValueType> operands, size_t count);
absl::Status ExpectFloat(absl::Span<const ValueType> operands, int i);
// float32 or bfloat16.
absl::Status ExpectFloatOrBFloat(absl::Span<const ValueType> operands, int i);
// Both float32 or both bfloat16.
absl::Status ExpectFactors(absl::Span<const ValueType> operands, int i, int j);
// The same, or i is float32 and j (weights) is int8.
absl::Status ExpectFactorAndWeights(absl::Span<const ValueType> operands, int i,
                                    int j);
absl::Status ExpectInt(absl::Span<const ValueType> operands, int i);
// i64[]: an index, a limit or a key.
absl::Status ExpectIndex(absl::Span<const ValueType> operands, int i);
absl::Status ExpectRank(absl::Span<const ValueType> operands, int i, int rank);
absl::Status ExpectShape(absl::Span<const ValueType> operands, int i,
                         const Shape& shape);
template <typename T>
absl::Status ExpectAttribute(const Attributes& attributes,
                             absl::string_view name);
// A number that lies in [0, 1) as the float that kernels get.
absl::Status ExpectRate(const Attributes& attributes, absl::string_view name);

// The attribute "type": "f32" or "bf16", or "i8" for weights; kFloat32 if
// absent.
absl::StatusOr<ElementType> FloatTypeAttribute(const Attributes& attributes);
absl::StatusOr<ElementType> WeightTypeAttribute(const Attributes& attributes);

// The attribute "value": a number that `type` holds.
absl::Status ExpectValue(const Attributes& attributes, ElementType type);

}  // namespace gshard

#endif  // SERVICES_GRAPH_OP_H_
