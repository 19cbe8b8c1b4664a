#include "services/sharding/role_split.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/base/status_macros.h"
#include "services/graph/builder.h"
#include "services/sharding/annotation.h"

namespace gshard {
namespace {

constexpr absl::string_view kExpertAxis = "expert";

// Operators that work row by row, or expert by expert, and so run wherever
// their rows are.
bool FollowsItsRows(const Node& node) {
  static const std::set<std::string>* const names =
      new std::set<std::string>{"ragged_dot",
                                "ragged_dot_rows_gradient",
                                "ragged_dot_weights_gradient",
                                "ragged_bias_add",
                                "ragged_bias_gradient",
                                "relu",
                                "relu_gradient",
                                "add",
                                "multiply",
                                "scale",
                                "dropout_rows"};
  return names->count(node.op->name) > 0;
}

// Operators whose last operand is the group sizes.
bool IsRagged(const Node& node) {
  return absl::StartsWith(node.op->name, "ragged_");
}

// The gradients of an expert parameter: [E, ...] out of rows and group sizes.
bool GivesExpertGradient(const Node& node) {
  return node.op->name == "ragged_dot_weights_gradient" ||
         node.op->name == "ragged_bias_gradient";
}

std::string ValueName(ValueId value) { return absl::StrCat("v", value); }

class RoleSplitter {
 public:
  explicit RoleSplitter(const Program& program)
      : program_(program),
        expert_side_(program.values.size(), false),
        level_(program.values.size(), 0),
        node_level_(program.nodes.size(), 0) {}

  absl::StatusOr<RolePrograms> Split() {
    RETURN_IF_ERROR(AssignSides());
    if (num_levels_ == 0) return RolePrograms{program_, {}};
    RETURN_IF_ERROR(BuildSegments());
    return BuildRouter();
  }

 private:
  bool IsParameter(ValueId value) const {
    return program_.producer(value).op->name == "parameter";
  }
  // Computed by a segment, as opposed to lying with the experts from the start.
  bool IsComputedByExperts(ValueId value) const {
    return expert_side_[value] && !IsParameter(value);
  }

  // Where each value lives, and how many crossings lie before it.
  absl::Status AssignSides() {
    for (size_t n = 0; n < program_.nodes.size(); ++n) {
      const Node& node = program_.nodes[n];
      if (node.op->name == "parameter") {
        ASSIGN_OR_RETURN(const std::optional<SplitAnnotation> split,
                         GetSplit(program_, node.outputs[0]));
        if (!split.has_value()) continue;
        if (split->dim != 0 || split->axis != kExpertAxis) {
          return absl::InvalidArgumentError(absl::StrCat(
              "parameter '", StringAttribute(node.attributes, "name"),
              "' can be split(0, expert) only, got ",
              program_.values[node.outputs[0]].sharding));
        }
        expert_side_[node.outputs[0]] = true;
        continue;
      }
      bool any_expert = false;
      int32_t level = 0;
      for (const ValueId input : node.inputs) {
        any_expert = any_expert || expert_side_[input];
        level = std::max(level, level_[input]);
      }
      // A bias has a gradient of rows that the router has, so nothing but the
      // group sizes tells whose it is.
      any_expert = any_expert || (GivesExpertGradient(node) &&
                                  expert_sizes_.count(node.inputs.back()) > 0);
      const bool runs_with_experts = any_expert && FollowsItsRows(node);
      if (runs_with_experts) {
        if (IsRagged(node)) expert_sizes_.insert(node.inputs.back());
        for (const ValueId input : node.inputs) {
          level = std::max(
              level, expert_side_[input] ? level_[input] : level_[input] + 1);
        }
        if (level == 0) {
          return absl::UnimplementedError(absl::StrCat(
              "operator '", node.op->name,
              "' on nothing but parameters that are split over experts"));
        }
        node_level_[n] = level;
        num_levels_ = std::max(num_levels_, level);
      } else {
        for (const ValueId input : node.inputs) {
          if (expert_side_[input] && IsParameter(input)) {
            return absl::UnimplementedError(
                absl::StrCat("operator '", node.op->name,
                             "' on a parameter that is split over experts"));
          }
        }
      }
      for (const ValueId output : node.outputs) {
        expert_side_[output] = runs_with_experts;
        level_[output] = level;
      }
    }
    return absl::OkStatus();
  }

  struct Draft {
    std::string name;
    std::optional<Builder> builder;
    std::map<ValueId, ValueId> here;  // value of the program -> of the segment
    std::vector<ValueId> calls;       // in order of first use
    std::set<ValueId> saves;
    std::vector<ValueId> replies;
    ValueId group_sizes = kNoValue;
  };

  absl::Status BuildSegments() {
    for (int32_t level = 0; level <= num_levels_; ++level) {
      Draft draft;
      draft.name = absl::StrCat(program_.name, "/", level);
      draft.builder.emplace(draft.name);
      drafts_.push_back(std::move(draft));
    }
    for (size_t n = 0; n < program_.nodes.size(); ++n) {
      const Node& node = program_.nodes[n];
      if (node_level_[n] == 0) {
        for (const ValueId input : node.inputs) {
          if (IsComputedByExperts(input)) Reply(input);
        }
        continue;
      }
      Draft& draft = drafts_[node_level_[n]];
      std::vector<ValueId> operands;
      for (const ValueId input : node.inputs) {
        operands.push_back(Operand(draft, node_level_[n], input));
      }
      if (IsRagged(node)) {
        if (draft.group_sizes != kNoValue &&
            draft.group_sizes != node.inputs.back()) {
          return absl::UnimplementedError(absl::StrCat(
              "operator '", node.op->name, "' of segment ", draft.name,
              ": two dispatches that do not depend on each other"));
        }
        draft.group_sizes = node.inputs.back();
      }
      const std::vector<ValueId> results = draft.builder->AddNode(
          node.op->name, std::move(operands), node.attributes);
      RETURN_IF_ERROR(draft.builder->status());
      for (size_t i = 0; i < node.outputs.size(); ++i) {
        draft.here[node.outputs[i]] = results[i];
      }
    }
    for (const auto& [name, value] : program_.outputs) {
      if (!IsComputedByExperts(value)) continue;
      if (!absl::StartsWith(name, "gradient/")) {
        Reply(value);
        continue;
      }
      Draft& draft = drafts_[level_[value]];
      draft.builder->Output(name, draft.here.at(value));
    }
    for (Draft& draft : drafts_) {
      for (const ValueId value : draft.replies) {
        draft.builder->Output("reply/" + ValueName(value),
                              draft.here.at(value));
      }
      for (const ValueId value : draft.saves) {
        draft.builder->Output("save/" + ValueName(value), draft.here.at(value));
      }
    }
    return absl::OkStatus();
  }

  void Reply(ValueId value) {
    std::vector<ValueId>& replies = drafts_[level_[value]].replies;
    if (std::find(replies.begin(), replies.end(), value) == replies.end()) {
      replies.push_back(value);
    }
  }

  // `value` inside the segment: a parameter, a value of this segment, or an
  // input that the call brings or an earlier segment saved.
  ValueId Operand(Draft& draft, int32_t level, ValueId value) {
    if (auto found = draft.here.find(value); found != draft.here.end()) {
      return found->second;
    }
    ValueId& here = draft.here[value];
    Builder& b = *draft.builder;
    if (IsParameter(value)) {
      const Node& node = program_.producer(value);
      Shape shape = program_.type(value).shape;
      shape[0] = Dim::Symbol("E");
      here = b.Parameter(StringAttribute(node.attributes, "name"),
                         std::move(shape));
      return here;
    }
    // The first segment that has the value saves it for the others.
    for (int32_t earlier = 1; earlier < level; ++earlier) {
      Draft& source = drafts_[earlier];
      auto found = source.here.find(value);
      if (found == source.here.end()) continue;
      source.saves.insert(value);
      here = b.Input("saved/" + ValueName(value),
                     source.builder->type(found->second));
      return here;
    }
    ValueType type = program_.type(value);
    // Group sizes, not rows: an entry per expert.
    if (type.type == ElementType::kInt32 && !type.shape.empty() &&
        type.shape[0].is_static()) {
      type.shape = {Dim::Symbol("E")};
    }
    here = b.Input("call/" + ValueName(value), std::move(type));
    draft.calls.push_back(value);
    return here;
  }

  absl::StatusOr<RolePrograms> BuildRouter() {
    RegisterShardingOps();
    Builder router(program_.name);
    std::vector<ValueId> renamed(program_.values.size(), kNoValue);
    std::vector<bool> called(drafts_.size(), false);
    const auto call = [&](int32_t level) -> absl::Status {
      if (level == 0 || called[level]) return absl::OkStatus();
      called[level] = true;
      return AddCall(router, drafts_[level], renamed);
    };
    for (size_t n = 0; n < program_.nodes.size(); ++n) {
      const Node& node = program_.nodes[n];
      if (node_level_[n] > 0) continue;
      if (node.op->name == "parameter" && expert_side_[node.outputs[0]]) {
        continue;
      }
      for (const ValueId input : node.inputs) {
        if (IsComputedByExperts(input)) RETURN_IF_ERROR(call(level_[input]));
      }
      std::vector<ValueId> operands;
      for (const ValueId input : node.inputs) {
        operands.push_back(renamed[input]);
      }
      const std::vector<ValueId> results =
          router.AddNode(node.op->name, std::move(operands), node.attributes);
      RETURN_IF_ERROR(router.status());
      for (size_t i = 0; i < node.outputs.size(); ++i) {
        renamed[node.outputs[i]] = results[i];
        router.Annotate(results[i], program_.values[node.outputs[i]].sharding);
      }
    }
    for (size_t level = 1; level < drafts_.size(); ++level) {
      RETURN_IF_ERROR(call(level));
    }
    for (const auto& [name, value] : program_.outputs) {
      if (IsComputedByExperts(value) && absl::StartsWith(name, "gradient/")) {
        continue;
      }
      router.Output(name, renamed[value]);
    }
    RolePrograms programs;
    ASSIGN_OR_RETURN(programs.router, std::move(router).Finish());
    for (size_t level = 1; level < drafts_.size(); ++level) {
      Segment segment;
      segment.name = drafts_[level].name;
      ASSIGN_OR_RETURN(segment.program,
                       std::move(*drafts_[level].builder).Finish());
      programs.segments.push_back(std::move(segment));
    }
    return programs;
  }

  absl::Status AddCall(Builder& router, const Draft& draft,
                       std::vector<ValueId>& renamed) {
    if (draft.group_sizes == kNoValue) {
      return absl::UnimplementedError(
          absl::StrCat("segment ", draft.name, " has no group sizes"));
    }
    std::vector<ValueId> operands = {draft.group_sizes};
    std::vector<int64_t> division = {
        static_cast<int64_t>(Division::kGroupSizes)};
    std::vector<int64_t> sent = {0};
    for (const ValueId value : draft.calls) {
      if (value == draft.group_sizes) {
        sent[0] = 1;
        continue;
      }
      const ValueType& type = program_.type(value);
      const bool rows = !type.shape.empty() && !type.shape[0].is_static();
      operands.push_back(value);
      division.push_back(
          static_cast<int64_t>(rows ? Division::kRows : Division::kWhole));
      sent.push_back(1);
    }
    std::vector<std::string> names;
    for (ValueId& operand : operands) {
      names.push_back("call/" + ValueName(operand));
      operand = renamed[operand];
    }
    Attributes attributes = {
        {"segment", draft.name},
        {"division", std::move(division)},
        {"sent", std::move(sent)},
        {"operands", absl::StrJoin(names, ";")},
        {"replies", static_cast<int64_t>(draft.replies.size())}};
    for (size_t i = 0; i < draft.replies.size(); ++i) {
      attributes[absl::StrCat("shape", i)] =
          program_.type(draft.replies[i]).shape;
    }
    const std::vector<ValueId> results = router.AddNode(
        "call_segment", std::move(operands), std::move(attributes));
    RETURN_IF_ERROR(router.status());
    for (size_t i = 0; i < draft.replies.size(); ++i) {
      renamed[draft.replies[i]] = results[i];
    }
    return absl::OkStatus();
  }

  const Program& program_;
  std::vector<bool> expert_side_;    // by value
  std::vector<int32_t> level_;       // by value: segments before and with it
  std::set<ValueId> expert_sizes_;   // group sizes of split parameters
  std::vector<int32_t> node_level_;  // by node: its segment, 0 for the router's
  int32_t num_levels_ = 0;
  std::vector<Draft> drafts_;  // by level; 0 is unused
};

}  // namespace

absl::StatusOr<RolePrograms> SplitRoles(const Program& program) {
  return RoleSplitter(program).Split();
}

}  // namespace gshard
