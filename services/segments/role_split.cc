#include "services/segments/role_split.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/base/status_macros.h"
#include "services/graph/builder.h"
#include "services/graph/op.h"
#include "services/partition/ops/collective_ops.h"
#include "services/partition/partitioner.h"
#include "services/sharding/annotation.h"

namespace gshard {
namespace {

constexpr int kWorker = 1;  // index of the role

std::string ValueName(ValueId value) { return absl::StrCat("v", value); }

// A value that is sent back to the router.
struct Reply {
  ValueId value = kNoValue;
  ValueId arrival = kNoValue;  // its form on arrival; `value` for an output
  Shape shape;                 // on arrival
};

// A segment under construction.
struct Draft {
  std::string name;
  std::optional<Builder> builder;
  std::map<ValueId, ValueId> here;  // value of both roles -> of the segment
  std::vector<ValueId> calls;       // crossings, in order of first use
  std::set<ValueId> saves;
  std::vector<Reply> replies;
  ValueId group_sizes = kNoValue;  // the router's
};

// Splits the joint program of both roles.
class RoleSplitter {
 public:
  explicit RoleSplitter(const Partitioned& partitioned)
      : program_(partitioned.program),
        roles_(partitioned.roles),
        level_(program_.values.size(), 0),
        node_level_(program_.nodes.size(), 0) {
    for (const auto& [name, placed] : partitioned.outputs) {
      whole_shapes_[name] = placed.type.shape;
    }
  }

  absl::StatusOr<RolePrograms> Run() {
    RETURN_IF_ERROR(AssignLevels());
    RETURN_IF_ERROR(BuildSegments());
    return BuildRouter();
  }

 private:
  bool IsWorkers(ValueId value) const { return roles_[value] == kWorker; }
  const std::string& ProducerOf(ValueId value) const {
    return program_.producer(value).op->name;
  }
  bool IsParameter(ValueId value) const {
    return ProducerOf(value) == "parameter";
  }
  // Whether a segment computes the value, rather than receiving or holding it.
  bool IsComputedThere(ValueId value) const {
    return IsWorkers(value) && !IsParameter(value) &&
           !IsCrossing(ProducerOf(value));
  }
  static std::string NameOf(const Node& node) {
    return absl::StrCat("operator '", node.op->name, "'");
  }

  // Counts the crossings before each value, which gives the segment of each
  // node.
  absl::Status AssignLevels() {
    for (size_t n = 0; n < program_.nodes.size(); ++n) {
      const Node& node = program_.nodes[n];
      int32_t level = 0;
      for (const ValueId input : node.inputs) {
        level = std::max(level, level_[input]);
      }
      const bool there = IsWorkers(node.outputs[0]);
      if (IsCrossing(node.op->name)) {
        if (there) ++level;
      } else if (there && node.op->name != "parameter") {
        if (level == 0) {
          return absl::UnimplementedError(absl::StrCat(
              NameOf(node),
              " on nothing but parameters that are split over experts"));
        }
        // Segments cannot communicate.
        if (IsCollective(node.op->name)) {
          return absl::UnimplementedError(
              absl::StrCat(NameOf(node), " between expert workers"));
        }
        node_level_[n] = level;
        num_levels_ = std::max(num_levels_, level);
      }
      for (const ValueId output : node.outputs) level_[output] = level;
    }
    return absl::OkStatus();
  }

  absl::Status BuildSegments() {
    for (int32_t level = 0; level <= num_levels_; ++level) {
      Draft draft;
      draft.name = absl::StrCat(program_.name, "/", level);
      draft.builder.emplace(draft.name);
      drafts_.push_back(std::move(draft));
    }
    for (size_t n = 0; n < program_.nodes.size(); ++n) {
      const Node& node = program_.nodes[n];
      if (IsCrossing(node.op->name) && !IsWorkers(node.outputs[0])) {
        RETURN_IF_ERROR(ReturnRows(node));
      }
      if (node_level_[n] == 0) continue;
      Draft& draft = drafts_[node_level_[n]];
      std::vector<ValueId> operands;
      for (const ValueId input : node.inputs) {
        ASSIGN_OR_RETURN(const ValueId operand,
                         Operand(draft, node_level_[n], input));
        operands.push_back(operand);
      }
      const std::vector<ValueId> results = draft.builder->AddNode(
          node.op->name, std::move(operands), node.attributes);
      RETURN_IF_ERROR(draft.builder->status());
      for (size_t i = 0; i < node.outputs.size(); ++i) {
        draft.here[node.outputs[i]] = results[i];
      }
    }
    for (const auto& [name, value] : program_.outputs) {
      if (!IsWorkers(value)) continue;
      if (!IsComputedThere(value)) {
        return absl::UnimplementedError(absl::StrCat(
            "output '", name, "' is not computed by expert workers"));
      }
      Draft& draft = drafts_[level_[value]];
      if (absl::StartsWith(name, "gradient/")) {
        draft.builder->Output(name, draft.here.at(value));
      } else {
        AddReply({value, value, whole_shapes_.at(name)});
      }
    }
    for (Draft& draft : drafts_) {
      for (const Reply& reply : draft.replies) {
        draft.builder->Output("reply/" + ValueName(reply.value),
                              draft.here.at(reply.value));
      }
      for (const ValueId value : draft.saves) {
        draft.builder->Output("save/" + ValueName(value), draft.here.at(value));
      }
    }
    return absl::OkStatus();
  }

  // Checks that all rows of a segment belong to one dispatch.
  absl::Status NoteGroupSizes(Draft& draft, ValueId sizes) {
    if (draft.group_sizes == kNoValue) draft.group_sizes = sizes;
    if (draft.group_sizes == sizes) return absl::OkStatus();
    return absl::UnimplementedError(
        absl::StrCat("segment ", draft.name,
                     ": two dispatches that do not depend on each other"));
  }

  // The same rows are sent back once, for all uses.
  void AddReply(Reply reply) {
    std::vector<Reply>& replies = drafts_[level_[reply.value]].replies;
    for (const Reply& other : replies) {
      if (other.value != reply.value) continue;
      same_arrival_[reply.arrival] = other.arrival;
      return;
    }
    replies.push_back(std::move(reply));
  }

  // Handles a node that returns rows to the router.
  absl::Status ReturnRows(const Node& node) {
    const ValueId value = node.inputs[0];
    if (node.op->name != "return_rows" || !IsComputedThere(value)) {
      return absl::UnimplementedError(
          absl::StrCat("no way for ", program_.type(value).ToString(),
                       " from expert workers to routers"));
    }
    Draft& draft = drafts_[level_[value]];
    AddReply({.value = value,
              .arrival = node.outputs[0],
              .shape = program_.type(node.outputs[0]).shape});
    return NoteGroupSizes(draft, node.inputs[1]);
  }

  // `value` inside the segment: a parameter, a value of this segment, or an
  // input that comes with the call or was saved by an earlier segment.
  absl::StatusOr<ValueId> Operand(Draft& draft, int32_t level, ValueId value) {
    if (auto found = draft.here.find(value); found != draft.here.end()) {
      return found->second;
    }
    if (ProducerOf(value) == "send_rows") {
      RETURN_IF_ERROR(
          NoteGroupSizes(draft, program_.producer(value).inputs[1]));
    }
    ValueId& here = draft.here[value];
    Builder& b = *draft.builder;
    if (IsParameter(value)) {
      here = b.Parameter(
          StringAttribute(program_.producer(value).attributes, "name"),
          program_.type(value).shape, program_.type(value).type);
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
    CHECK(IsCrossing(ProducerOf(value)));
    here = b.Input("call/" + ValueName(value), program_.type(value));
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
    for (const Node& node : program_.nodes) {
      if (IsWorkers(node.outputs[0])) continue;
      if (IsCrossing(node.op->name)) {
        RETURN_IF_ERROR(call(level_[node.inputs[0]]));
        const auto same = same_arrival_.find(node.outputs[0]);
        if (same != same_arrival_.end()) {
          renamed[node.outputs[0]] = renamed[same->second];
        }
        continue;
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
      }
    }
    for (size_t level = 1; level < drafts_.size(); ++level) {
      RETURN_IF_ERROR(call(level));
    }
    for (const auto& [name, value] : program_.outputs) {
      if (absl::StartsWith(name, "gradient/") && IsWorkers(value)) continue;
      const auto same = same_arrival_.find(value);
      router.Output(
          name, renamed[same == same_arrival_.end() ? value : same->second]);
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
    // Operand 0 serves to divide the others, whether sent or not.
    std::vector<ValueId> operands = {renamed[draft.group_sizes]};
    std::vector<int64_t> division = {
        static_cast<int64_t>(Division::kGroupSizes)};
    std::vector<int64_t> sent = {0};
    std::vector<std::string> names = {"call/sizes"};
    for (const ValueId value : draft.calls) {
      const Node& crossing = program_.producer(value);
      const bool rows = crossing.op->name == "send_rows";
      if (rows && value == crossing.outputs[1]) {
        sent[0] = 1;
        names[0] = "call/" + ValueName(value);
        continue;
      }
      operands.push_back(renamed[crossing.inputs[0]]);
      division.push_back(
          static_cast<int64_t>(rows ? Division::kRows : Division::kWhole));
      sent.push_back(1);
      names.push_back("call/" + ValueName(value));
    }
    Attributes attributes = {
        {"segment", draft.name},
        {"division", std::move(division)},
        {"sent", std::move(sent)},
        {"operands", absl::StrJoin(names, ";")},
        {"replies", static_cast<int64_t>(draft.replies.size())}};
    for (size_t i = 0; i < draft.replies.size(); ++i) {
      attributes[absl::StrCat("shape", i)] = draft.replies[i].shape;
      const ElementType type = program_.type(draft.replies[i].value).type;
      if (type != ElementType::kFloat32) {
        attributes[absl::StrCat("type", i)] =
            std::string(ElementTypeName(type));
      }
    }
    const std::vector<ValueId> results = router.AddNode(
        "call_segment", std::move(operands), std::move(attributes));
    RETURN_IF_ERROR(router.status());
    for (size_t i = 0; i < draft.replies.size(); ++i) {
      renamed[draft.replies[i].arrival] = results[i];
    }
    return absl::OkStatus();
  }

  const Program& program_;
  const std::vector<int>& roles_;
  std::map<std::string, Shape> whole_shapes_;  // output shapes
  // Further crossings of a reply, mapped to the first one.
  std::map<ValueId, ValueId> same_arrival_;
  std::vector<int32_t> level_;       // by value
  std::vector<int32_t> node_level_;  // by node: its segment, 0 for the router's
  int32_t num_levels_ = 0;
  std::vector<Draft> drafts_;  // by level; 0 is unused
};

// Checks that workers hold whole experts.
absl::Status CheckParameter(absl::string_view name, const ValueType& type,
                            const Sharding& sharding, const DeviceMesh& mesh) {
  bool good = true, of_workers = false;
  for (const int axis : sharding.UsedAxes()) {
    of_workers = of_workers || mesh.RoleOf(axis) == kWorker;
  }
  if (!of_workers) return absl::OkStatus();
  for (size_t d = 0; d < sharding.dims.size(); ++d) {
    const Axes& axes = sharding.dims[d].axes;
    good = good && (d == 0 ? axes.size() == 1 && mesh.IsElastic(axes)
                           : !mesh.IsElastic(axes));
  }
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "parameter '", name, "' ", type.ToString(),
      " can be split(0, expert) only, got ", sharding.ToString(mesh)));
}

}  // namespace

absl::StatusOr<RolePrograms> SplitRoles(const Program& program) {
  ASSIGN_OR_RETURN(const DeviceMesh mesh,
                   DeviceMesh::Create({{"router", 1, "router"},
                                       {"expert", kElastic, "worker", "E"}}));
  for (const Node* node : program.NodesOf("parameter")) {
    const ValueId value = node->outputs[0];
    ASSIGN_OR_RETURN(const std::optional<Annotation> annotation,
                     GetAnnotation(program, value, mesh));
    if (!annotation.has_value()) continue;
    RETURN_IF_ERROR(CheckParameter(StringAttribute(node->attributes, "name"),
                                   program.type(value), annotation->sharding,
                                   mesh));
  }
  ASSIGN_OR_RETURN(const Partitioned partitioned, Partition(program, mesh));
  if (std::count(partitioned.roles.begin(), partitioned.roles.end(), kWorker) ==
      0) {
    return RolePrograms{program, {}};
  }
  for (const auto& [name, placed] : partitioned.parameters) {
    RETURN_IF_ERROR(CheckParameter(name, placed.type, placed.sharding, mesh));
  }
  return RoleSplitter(partitioned).Run();
}

}  // namespace gshard
