// Operators: what each kind of node means.
//
// An operator is one OpDef: how it checks its operands and derives the types
// of its results, how it computes, and how it is differentiated. Rooms add
// their operators to one registry; nothing else in this room knows any
// operator by name.

#ifndef SERVICES_GRAPH_OP_H_
#define SERVICES_GRAPH_OP_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "services/collectives/device_groups.h"
#include "services/graph/dim.h"
#include "services/graph/program.h"
#include "services/tensor/tensor.h"

namespace gshard {

class Builder;

// Rows [begin, end).
struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;

  bool operator==(const RowRange&) const = default;
};

// Runs the segments of a partitioned program that live elsewhere.
class SegmentRunner {
 public:
  virtual ~SegmentRunner() = default;

  // Calls `node` (a call_segment, see services/segments) with its operands and
  // returns its results in the order of its outputs.
  virtual absl::StatusOr<std::vector<Tensor>> Call(
      const Node& node, absl::Span<const Tensor> operands) = 0;

  // Rows of the latest Call()'s results that nobody was there to compute, and
  // that hold zeros: ascending and disjoint. Most runners fail instead.
  virtual absl::Span<const RowRange> lost_rows() const { return {}; }
};

// What a kernel sees of one execution of its node.
struct KernelContext {
  const Node& node;
  const Bindings& bindings;
  // Types of the results as the program states them.
  absl::Span<const ValueType> result_types;
  // Operands. A kernel may move from one: where nothing else needs it, it is
  // then the only holder of the buffer and can overwrite it.
  absl::Span<Tensor> operands;
  // To be set, one per output.
  absl::Span<Tensor> results;
  SegmentRunner* segments = nullptr;
  // The other devices of a partitioned program; null outside of one.
  DeviceGroups* devices = nullptr;

  Tensor Take(int i) { return std::move(operands[i]); }
  const Attributes& attributes() const { return node.attributes; }
  absl::StatusOr<Dims> ResultDims(int i) const {
    return bindings.Resolve(result_types[i].shape);
  }
};

struct OpDef {
  std::string name;

  // Types of the results. Errors: InvalidArgument saying what was expected and
  // what came, for operands and attributes alike; the builder puts the
  // operator's name in front.
  std::function<absl::StatusOr<std::vector<ValueType>>(
      absl::Span<const ValueType> operands, const Attributes& attributes)>
      infer;

  // Computes the results. Element types and shapes of the operands have been
  // checked against the program; values (ids, lengths) have not.
  std::function<absl::Status(KernelContext&)> kernel;

  // A second, slow and plain implementation for tests; absent where the kernel
  // only moves data.
  std::function<absl::Status(KernelContext&)> reference = nullptr;

  // Adds to the builder's program the gradients of the operands, given those
  // of the results (kNoValue where nothing depends on a result), and returns
  // one per operand, kNoValue where there is none. Absent for operators that
  // have no gradient. A gradient has the shape of its value and is f32 or, for
  // a bf16 value, either.
  std::function<absl::StatusOr<std::vector<ValueId>>(
      Builder& builder, const Node& node,
      absl::Span<const ValueId> result_gradients)>
      gradient = nullptr;
};

// Adds operators to the registry; adding a name again does nothing. From
// any thread.
void RegisterOps(std::vector<OpDef> ops);

// Null if there is none. The operators of this room are always there.
const OpDef* FindOp(absl::string_view name);

// All names, sorted.
std::vector<std::string> OpNames();

// Checks for `infer` functions.
absl::Status ExpectOperands(absl::Span<const ValueType> operands, size_t count);
absl::Status ExpectFloat(absl::Span<const ValueType> operands, int i);
// float32 or bfloat16.
absl::Status ExpectFloatOrBFloat(absl::Span<const ValueType> operands, int i);
// Both float32 or both bfloat16.
absl::Status ExpectFactors(absl::Span<const ValueType> operands, int i, int j);
absl::Status ExpectInt(absl::Span<const ValueType> operands, int i);
absl::Status ExpectRank(absl::Span<const ValueType> operands, int i, int rank);
absl::Status ExpectShape(absl::Span<const ValueType> operands, int i,
                         const Shape& shape);
template <typename T>
absl::Status ExpectAttribute(const Attributes& attributes,
                             absl::string_view name);

// The attribute "type", "f32" or "bf16"; kFloat32 where there is none.
absl::StatusOr<ElementType> FloatTypeAttribute(const Attributes& attributes);

}  // namespace gshard

#endif  // SERVICES_GRAPH_OP_H_
