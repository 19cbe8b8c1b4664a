#include "services/partition/ops/collective_ops.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/collectives/collectives.h"
#include "services/collectives/ragged_exchange.h"
#include "services/graph/op.h"
#include "services/graph/ops/dims.h"
#include "services/ops/concat.h"
#include "services/partition/ops/local_part_ops.h"
#include "services/partition/ops/part_ops.h"
#include "services/partition/ops/part_position.h"

namespace gshard {
namespace {

absl::Status ExpectAlong(const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectAttribute<std::string>(attributes, "axes"));
  return ExpectParts(attributes);
}

// The communicator along the node's axes.
absl::StatusOr<Communicator*> Comm(KernelContext& c) {
  ASSIGN_OR_RETURN(DeviceGroups* const devices, DevicesOf(c));
  ASSIGN_OR_RETURN(Communicator* const comm,
                   devices->Along(StringAttribute(c.attributes(), "axes")));
  const int64_t parts = IntAttribute(c.attributes(), "parts");
  if (comm->size() != parts) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the program is for ", parts, " devices along ",
        StringAttribute(c.attributes(), "axes"), ", there are ", comm->size()));
  }
  return comm;
}

// One operand, a result of the same type.
ResultTypes InferSame(absl::Span<const ValueType> operands,
                      const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 1));
  RETURN_IF_ERROR(ExpectAlong(attributes));
  return std::vector<ValueType>{operands[0]};
}

// One operand; the attribute "shape" is the result's.
ResultTypes InferShape(absl::Span<const ValueType> operands,
                       const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 1));
  RETURN_IF_ERROR(ExpectAlong(attributes));
  RETURN_IF_ERROR(ExpectAttribute<Shape>(attributes, "shape"));
  const Shape& shape = ShapeAttribute(attributes, "shape");
  if (shape.size() != operands[0].shape.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'shape' must have the rank of ", operands[0].ToString(),
                     ", got ", ShapeToString(shape)));
  }
  return std::vector<ValueType>{{operands[0].type, shape}};
}

ResultTypes InferReduction(absl::Span<const ValueType> operands,
                           const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectAttribute<int64_t>(attributes, "reduction"));
  const int64_t reduction = IntAttribute(attributes, "reduction");
  if (reduction < 0 || reduction > static_cast<int64_t>(Reduction::kMax)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'reduction' must be 0 or 1, got ", reduction));
  }
  return InferSame(operands, attributes);
}

ResultTypes InferAlongDim(absl::Span<const ValueType> operands,
                          const Attributes& attributes) {
  ASSIGN_OR_RETURN(std::vector<ValueType> result,
                   InferShape(operands, attributes));
  RETURN_IF_ERROR(
      ExpectDim(attributes, "dim", operands[0].shape.size()).status());
  return result;
}

ResultTypes InferAllToAll(absl::Span<const ValueType> operands,
                          const Attributes& attributes) {
  ASSIGN_OR_RETURN(std::vector<ValueType> result,
                   InferShape(operands, attributes));
  RETURN_IF_ERROR(
      ExpectDim(attributes, "split_dim", operands[0].shape.size()).status());
  RETURN_IF_ERROR(
      ExpectDim(attributes, "concat_dim", operands[0].shape.size()).status());
  return result;
}

ResultTypes InferPermute(absl::Span<const ValueType> operands,
                         const Attributes& attributes) {
  ASSIGN_OR_RETURN(std::vector<ValueType> result,
                   InferShape(operands, attributes));
  RETURN_IF_ERROR(ExpectAttribute<std::vector<int64_t>>(attributes, "source"));
  const std::vector<int64_t>& source = IntsAttribute(attributes, "source");
  const int64_t parts = IntAttribute(attributes, "parts");
  const bool good = static_cast<int64_t>(source.size()) == parts &&
                    std::all_of(source.begin(), source.end(), [&](int64_t s) {
                      return s >= -1 && s < parts;
                    });
  if (!good) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'source' must name ", parts, " devices of ", parts, " or -1"));
  }
  return result;
}

ResultTypes InferShift(absl::Span<const ValueType> operands,
                       const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectAttribute<int64_t>(attributes, "by"));
  return InferSame(operands, attributes);
}

template <typename Function>
std::function<absl::Status(KernelContext&)> OnComm(Function function) {
  return [function](KernelContext& c) -> absl::Status {
    ASSIGN_OR_RETURN(Communicator* const comm, Comm(c));
    ASSIGN_OR_RETURN(c.results[0], function(*comm, c));
    return absl::OkStatus();
  };
}

absl::StatusOr<Tensor> ShiftKernel(Communicator& comm, KernelContext& c) {
  const int64_t by = IntAttribute(c.attributes(), "by");
  std::vector<int> source(comm.size(), -1);
  for (int r = 0; r < comm.size(); ++r) {
    if (r - by >= 0 && r - by < comm.size())
      source[r] = static_cast<int>(r - by);
  }
  return Permute(comm, c.operands[0], source);
}

absl::StatusOr<Tensor> PermuteKernel(Communicator& comm, KernelContext& c) {
  const std::vector<int64_t>& source = IntsAttribute(c.attributes(), "source");
  return Permute(comm, c.operands[0],
                 std::vector<int>(source.begin(), source.end()));
}

// rows and one vector or table of counts after them; "rows" of the result.
absl::StatusOr<ValueType> RowsResult(absl::Span<const ValueType> operands,
                                     size_t count,
                                     const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, count));
  RETURN_IF_ERROR(ExpectAttribute<Shape>(attributes, "rows"));
  const Shape& rows = ShapeAttribute(attributes, "rows");
  if (rows.size() != 1 || operands[0].shape.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'rows' must be one dimension and operand 0 have rows, got ",
        ShapeToString(rows), " and ", operands[0].ToString()));
  }
  for (size_t i = 1; i < count; ++i) RETURN_IF_ERROR(ExpectInt(operands, i));
  ValueType result = operands[0];
  result.shape[0] = rows[0];
  return result;
}

ResultTypes InferRaggedAllToAll(absl::Span<const ValueType> operands,
                                const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectAlong(attributes));
  ASSIGN_OR_RETURN(ValueType rows, RowsResult(operands, 2, attributes));
  RETURN_IF_ERROR(ExpectRank(operands, 1, 1));
  const Dim& experts = operands[1].shape[0];
  const int64_t parts = IntAttribute(attributes, "parts");
  if (!experts.is_static()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "operand 1 must have a static size, got ", operands[1].ToString()));
  }
  // Rounded up; a size from the wire may be the largest.
  const Dim block(experts.size() / parts + (experts.size() % parts != 0));
  return std::vector<ValueType>{std::move(rows),
                                {ElementType::kInt32, {block}},
                                {ElementType::kInt32, {parts, block}}};
}

ResultTypes InferRaggedAllGather(absl::Span<const ValueType> operands,
                                 const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectAlong(attributes));
  ASSIGN_OR_RETURN(ValueType rows, RowsResult(operands, 2, attributes));
  RETURN_IF_ERROR(ExpectRank(operands, 1, 1));
  const Dim& experts = operands[1].shape[0];
  return std::vector<ValueType>{
      std::move(rows),
      operands[1],
      {ElementType::kInt32, {IntAttribute(attributes, "parts"), experts}}};
}

// Ragged operators with one result.
template <size_t kOperands>
ResultTypes InferRows(absl::Span<const ValueType> operands,
                      const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectAlong(attributes));
  ASSIGN_OR_RETURN(ValueType rows, RowsResult(operands, kOperands, attributes));
  return std::vector<ValueType>{std::move(rows)};
}

template <typename Function>
std::function<absl::Status(KernelContext&)> RowsKernel(Function function) {
  return [function](KernelContext& c) -> absl::Status {
    ASSIGN_OR_RETURN(Communicator* const comm, Comm(c));
    ASSIGN_OR_RETURN(RaggedRows rows,
                     function(*comm, c.operands[0], c.operands[1]));
    c.results[0] = std::move(rows.rows);
    c.results[1] = std::move(rows.group_sizes);
    c.results[2] = std::move(rows.counts);
    return absl::OkStatus();
  };
}

// Each device's rows belong to one expert: joined in order.
absl::StatusOr<Tensor> RowsAllGather(Communicator& comm, KernelContext& c) {
  Tensor sizes = Tensor::Zeros(ElementType::kInt32, {comm.size()});
  sizes.i32()[comm.rank()] = static_cast<int32_t>(c.operands[0].dim(0));
  ASSIGN_OR_RETURN(RaggedRows rows,
                   RaggedAllGather(comm, c.operands[0], sizes));
  return std::move(rows.rows);
}

absl::Status Crossing(KernelContext&) {
  return absl::FailedPreconditionError(
      "a program of several roles runs when it has been parted by role");
}

ResultTypes InferSendRows(absl::Span<const ValueType> operands,
                          const Attributes& attributes) {
  ASSIGN_OR_RETURN(ValueType rows, RowsResult(operands, 2, attributes));
  RETURN_IF_ERROR(ExpectAttribute<Shape>(attributes, "experts"));
  return std::vector<ValueType>{
      std::move(rows),
      {ElementType::kInt32, ShapeAttribute(attributes, "experts")}};
}

ResultTypes InferReturnRows(absl::Span<const ValueType> operands,
                            const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectAttribute<std::string>(attributes, "sum_over"));
  ASSIGN_OR_RETURN(ValueType rows, RowsResult(operands, 2, attributes));
  return std::vector<ValueType>{std::move(rows)};
}

ResultTypes InferSendWhole(absl::Span<const ValueType> operands,
                           const Attributes&) {
  RETURN_IF_ERROR(ExpectOperands(operands, 1));
  return std::vector<ValueType>{operands[0]};
}

std::vector<OpDef> DenseCollectives() {
  return {
      {.name = "all_reduce",
       .infer = InferReduction,
       .kernel = OnComm([](Communicator& comm, KernelContext& c) {
         return AllReduce(
             comm, c.operands[0],
             static_cast<Reduction>(IntAttribute(c.attributes(), "reduction")));
       })},
      {.name = "reduce_scatter",
       .infer = InferAlongDim,
       .kernel = OnComm([](Communicator& comm, KernelContext& c) {
         return ReduceScatter(comm, c.operands[0],
                              IntAttribute(c.attributes(), "dim"));
       })},
      {.name = "all_gather",
       .infer = InferAlongDim,
       .kernel = OnComm([](Communicator& comm, KernelContext& c) {
         return AllGather(comm, c.operands[0],
                          IntAttribute(c.attributes(), "dim"));
       })},
      {.name = "all_to_all",
       .infer = InferAllToAll,
       .kernel = OnComm([](Communicator& comm, KernelContext& c) {
         return AllToAll(comm, c.operands[0],
                         IntAttribute(c.attributes(), "split_dim"),
                         IntAttribute(c.attributes(), "concat_dim"));
       })},
      {.name = "permute",
       .infer = InferPermute,
       .kernel = OnComm(PermuteKernel)},
      {.name = "shift", .infer = InferShift, .kernel = OnComm(ShiftKernel)}};
}

std::vector<OpDef> RaggedCollectives() {
  return {{.name = "ragged_all_to_all",
           .infer = InferRaggedAllToAll,
           .kernel = RowsKernel(RaggedAllToAll)},
          {.name = "ragged_all_to_all_back",
           .infer = InferRows<3>,
           .kernel = OnComm([](Communicator& comm, KernelContext& c) {
             return RaggedAllToAllBack(comm, c.operands[0], c.operands[1],
                                       c.operands[2]);
           })},
          {.name = "ragged_all_gather",
           .infer = InferRaggedAllGather,
           .kernel = RowsKernel(RaggedAllGather)},
          {.name = "rows_all_gather",
           .infer = InferRows<1>,
           .kernel = OnComm(RowsAllGather)},
          {.name = "ragged_local_rows",
           .infer = InferRows<2>,
           .kernel = OnComm([](Communicator& comm, KernelContext& c) {
             return RaggedLocalRows(c.operands[0], c.operands[1], comm.rank());
           })}};
}

std::vector<OpDef> Crossings() {
  return {{.name = "send_rows", .infer = InferSendRows, .kernel = Crossing},
          {.name = "return_rows", .infer = InferReturnRows, .kernel = Crossing},
          {.name = "send_whole", .infer = InferSendWhole, .kernel = Crossing}};
}

bool IsOneOf(absl::string_view op, const std::vector<OpDef>& ops) {
  return std::any_of(ops.begin(), ops.end(),
                     [&](const OpDef& def) { return def.name == op; });
}

}  // namespace

void RegisterCollectiveOps() {
  RegisterOps(DenseCollectives());
  RegisterOps(RaggedCollectives());
  RegisterOps(LocalPartOps());
  RegisterOps(Crossings());
  RegisterOps(DropoutPartOps());
  RegisterOps(AttentionPartOps());
  RegisterOps(VocabularyPartOps());
  RegisterOps(InverseRootOps());
  RegisterOps(ReduceMaxPartOps());
  RegisterOps(MovedPartOps());
  RegisterOps(WindowedEinsumOps());
}

bool IsCollective(absl::string_view op) {
  static const std::vector<OpDef>* const dense =
      new std::vector<OpDef>(DenseCollectives());
  static const std::vector<OpDef>* const ragged =
      new std::vector<OpDef>(RaggedCollectives());
  return IsOneOf(op, *dense) ||
         (IsOneOf(op, *ragged) && op != "ragged_local_rows") ||
         op == "windowed_einsum";
}

bool IsCrossing(absl::string_view op) {
  static const std::vector<OpDef>* const crossings =
      new std::vector<OpDef>(Crossings());
  return IsOneOf(op, *crossings);
}

}  // namespace gshard
