#include "services/segments/call_segment.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "services/base/check.h"
#include "services/base/status_macros.h"
#include "services/graph/op.h"
#include "services/segments/segment_runner.h"

namespace gshard {
namespace {

ResultTypes ReplyTypes(const Attributes& attributes) {
  std::vector<ValueType> results;
  for (int64_t i = 0; i < IntAttribute(attributes, "replies"); ++i) {
    const std::string name = absl::StrCat("shape", i);
    RETURN_IF_ERROR(ExpectAttribute<Shape>(attributes, name));
    // Absent for f32, as "type" of other operators.
    const std::string type_name = absl::StrCat("type", i);
    ElementType type = ElementType::kFloat32;
    if (attributes.contains(type_name)) {
      RETURN_IF_ERROR(ExpectAttribute<std::string>(attributes, type_name));
      ASSIGN_OR_RETURN(
          type, ParseElementType(StringAttribute(attributes, type_name)));
      if (type == ElementType::kInt8) {
        return absl::InvalidArgumentError(
            absl::StrCat("'", type_name, "': expected i8 of parameters only"));
      }
    }
    results.push_back({type, ShapeAttribute(attributes, name)});
  }
  return results;
}

ResultTypes InferCall(absl::Span<const ValueType> operands,
                      const Attributes& attributes) {
  for (const char* name : {"segment", "operands"}) {
    RETURN_IF_ERROR(ExpectAttribute<std::string>(attributes, name));
  }
  for (const char* name : {"division", "sent"}) {
    RETURN_IF_ERROR(ExpectAttribute<std::vector<int64_t>>(attributes, name));
    if (IntsAttribute(attributes, name).size() != operands.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", name, "' must have an entry for each of ",
                       operands.size(), " operands"));
    }
  }
  for (const int64_t division : IntsAttribute(attributes, "division")) {
    if (division < 0 || division > static_cast<int64_t>(Division::kWhole)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'division' must lie in [0, 2], got ", division));
    }
  }
  const std::vector<std::string> names =
      absl::StrSplit(StringAttribute(attributes, "operands"), ';');
  if (names.size() != operands.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'operands' must name each of ", operands.size(),
                     " operands, got ", names.size(), " names"));
  }
  if (operands.empty() || operands[0].type != ElementType::kInt32) {
    return absl::InvalidArgumentError("operand 0 must be the group sizes");
  }
  RETURN_IF_ERROR(ExpectAttribute<int64_t>(attributes, "replies"));
  return ReplyTypes(attributes);
}
absl::Status CallKernel(KernelContext& context) {
  auto* const segments = context.run.Get<SegmentRunner>();
  if (segments == nullptr) {
    return absl::FailedPreconditionError("there is nobody to call segments of");
  }
  auto results = segments->Call(context.node, context.operands);
  if (!results.ok()) return results.status();
  if (results->size() != context.results.size()) {
    return absl::InternalError(absl::StrCat("expected ", context.results.size(),
                                            " replies, got ", results->size()));
  }
  std::move(results->begin(), results->end(), context.results.begin());
  return absl::OkStatus();
}

}  // namespace

SegmentCall GetSegmentCall(const Node& node) {
  SegmentCall call;
  call.segment = StringAttribute(node.attributes, "segment");
  for (const int64_t division : IntsAttribute(node.attributes, "division")) {
    call.division.push_back(static_cast<Division>(division));
  }
  for (const int64_t sent : IntsAttribute(node.attributes, "sent")) {
    call.sent.push_back(sent != 0);
  }
  call.names =
      absl::StrSplit(StringAttribute(node.attributes, "operands"), ';');
  call.num_replies = IntAttribute(node.attributes, "replies");
  auto types = ReplyTypes(node.attributes);
  CHECK(types.ok());  // the node was inferred
  call.reply_types = *std::move(types);
  return call;
}

void RegisterShardingOps() {
  RegisterOps(
      {{.name = "call_segment", .infer = InferCall, .kernel = CallKernel}});
}

}  // namespace gshard
