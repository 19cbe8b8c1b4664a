#include "services/sharding/manual.h"

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/graph/op.h"

namespace gshard {
namespace {

// Attributes: "shape" of the result; "inner" shape of the operand; "axes" of
// each dimension as "d,e;;f"; "copies", how many devices have each part; "sum",
// whether those devices' shares are to be added.
ResultTypes Infer(absl::Span<const ValueType> operands,
                  const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 1));
  RETURN_IF_ERROR(ExpectAttribute<Shape>(attributes, "shape"));
  RETURN_IF_ERROR(ExpectAttribute<Shape>(attributes, "inner"));
  RETURN_IF_ERROR(ExpectAttribute<std::string>(attributes, "axes"));
  RETURN_IF_ERROR(ExpectAttribute<int64_t>(attributes, "copies"));
  RETURN_IF_ERROR(ExpectAttribute<int64_t>(attributes, "sum"));
  RETURN_IF_ERROR(
      ExpectShape(operands, 0, ShapeAttribute(attributes, "inner")));
  if (IntAttribute(attributes, "copies") < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("'copies' must be at least 1, got ",
                     IntAttribute(attributes, "copies")));
  }
  return std::vector<ValueType>{
      {operands[0].type, ShapeAttribute(attributes, "shape")}};
}

absl::Status Identity(KernelContext& c) {
  if (ShapeAttribute(c.attributes(), "shape") !=
      ShapeAttribute(c.attributes(), "inner")) {
    return absl::FailedPreconditionError(
        "a program with manual regions must be partitioned for its mesh");
  }
  c.results[0] = c.Take(0);
  return absl::OkStatus();
}

// The gradient: what entered leaves, adding the shares of devices with copies;
// what left enters, each copy taking its share of the gradient.
OperandGradients Back(Builder& b, const Node& node,
                      absl::Span<const ValueId> dy, absl::string_view op,
                      bool sum) {
  Attributes attributes = node.attributes;
  std::swap(attributes["shape"], attributes["inner"]);
  attributes["sum"] = static_cast<int64_t>(sum);
  ValueId dy0 = dy[0];
  const int64_t copies = IntAttribute(attributes, "copies");
  if (!sum && copies > 1) {
    dy0 = b.Scale(dy0, 1.0 / static_cast<double>(copies));
  }
  return std::vector<ValueId>{b.AddOne(op, {dy0}, std::move(attributes))};
}

ValueId Cross(Builder& b, absl::string_view op, ValueId x, const Shape& from,
              const Shape& to, const Sharding& sharding,
              const DeviceMesh& mesh) {
  RegisterManualOps();
  if (x == kNoValue) return x;
  std::string axes;
  for (size_t d = 0; d < sharding.dims.size(); ++d) {
    absl::StrAppend(&axes, d > 0 ? ";" : "", mesh.Names(sharding.dims[d].axes));
  }
  const int64_t parts = mesh.Parts(sharding.UsedAxes());
  return b.AddOne(op, {x},
                  {{"shape", to},
                   {"inner", from},
                   {"axes", axes},
                   {"copies", mesh.NumDevices() / parts},
                   {"sum", int64_t{0}}});
}

bool HasRank(Builder& b, const Shape& shape, const Sharding& sharding,
             const DeviceMesh& mesh) {
  if (shape.size() == sharding.dims.size() && sharding.partial.empty()) {
    return true;
  }
  b.Fail(absl::InvalidArgumentError(
      absl::StrCat("a manual region's sharding must have the rank of ",
                   ShapeToString(shape), ", got ", sharding.ToString(mesh))));
  return false;
}

}  // namespace

ValueId EnterManual(Builder& builder, ValueId x, const Sharding& sharding,
                    const DeviceMesh& mesh) {
  const Shape shape = builder.type(x).shape;
  if (!HasRank(builder, shape, sharding, mesh)) return kNoValue;
  return Cross(builder, "enter_manual", x, shape,
               LocalShape(shape, sharding, mesh), sharding, mesh);
}

ValueId LeaveManual(Builder& builder, ValueId x, const Shape& shape,
                    const Sharding& sharding, const DeviceMesh& mesh) {
  if (!HasRank(builder, shape, sharding, mesh)) return kNoValue;
  return Cross(builder, "leave_manual", x, LocalShape(shape, sharding, mesh),
               shape, sharding, mesh);
}

void RegisterManualOps() {
  RegisterOps(
      {{.name = "enter_manual",
        .infer = Infer,
        .kernel = Identity,
        .gradient =
            [](Builder& b, const Node& node, absl::Span<const ValueId> dy) {
              return Back(b, node, dy, "leave_manual", /*sum=*/true);
            }},
       {.name = "leave_manual",
        .infer = Infer,
        .kernel = Identity,
        .gradient = [](Builder& b, const Node& node,
                       absl::Span<const ValueId> dy) {
          return Back(b, node, dy, "enter_manual", /*sum=*/false);
        }}});
}

}  // namespace gshard
