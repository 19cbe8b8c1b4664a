#include "services/partition/partitioner.h"

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/partition/lowering.h"
#include "services/partition/lowering/standard_lowerings.h"
#include "services/partition/ops/collective_ops.h"
#include "services/sharding/propagation.h"

namespace gshard {

class Partitioner {
 public:
  Partitioner(const Program& program, const DeviceMesh& mesh,
              const Shardings& shardings, const PartitionOptions& options)
      : program_(program),
        mesh_(mesh),
        shardings_(shardings),
        l_(program, mesh, shardings, options) {}

  absl::StatusOr<Partitioned> Run() {
    for (size_t n = 0; n < program_.nodes.size(); ++n) {
      const absl::Status status = LowerNode(n);
      if (!status.ok()) {
        return Annotate(status,
                        absl::StrCat("program '", program_.name, "', node ", n,
                                     " (", program_.nodes[n].op->name, ")"));
      }
    }
    for (const auto& [name, value] : program_.outputs) {
      Placed placed = PlacedAs(value);
      // An output must not be a partial sum.
      placed.sharding.partial.clear();
      ASSIGN_OR_RETURN(const ValueId local,
                       l_.Reshard(value, placed.sharding, placed.role));
      l_.b.Output(name, Reorder(local, placed, /*inverse=*/true));
      partitioned_.outputs.emplace_back(name, std::move(placed));
    }
    ASSIGN_OR_RETURN(Program whole, std::move(l_.b).Finish());
    Prune(whole);
    return std::move(partitioned_);
  }

 private:
  Placed PlacedAs(ValueId value) const {
    return {.type = program_.type(value),
            .sharding = l_.Canonical(value).sharding,
            .role = l_.Canonical(value).role,
            .device_order = shardings_.device_orders[value]};
  }

  absl::Status LowerNode(int32_t n) {
    const Node& node = program_.nodes[n];
    if (node.op->kernel == nullptr) return LowerSource(node);
    const OpRule& rule = shardings_.rules[n];
    std::vector<LocalValue> results;
    if (const LowerFunction* lower = FindLowering(node.op->name);
        lower != nullptr) {
      ASSIGN_OR_RETURN(results, (*lower)(l_, node));
      RETURN_IF_ERROR(l_.b.status());
    }
    if (results.empty()) {
      ASSIGN_OR_RETURN(results,
                       l_.LowerByRule(node, rule, l_.ChooseAxes(node, rule)));
    }
    // Register all first: rows cannot move without their group sizes.
    for (size_t i = 0; i < results.size(); ++i) {
      l_.AddVersion(node.outputs[i], results[i]);
    }
    for (size_t i = 0; i < results.size(); ++i) {
      RETURN_IF_ERROR(Keep(node.outputs[i], std::move(results[i])));
    }
    return l_.b.status();
  }

  // Makes the sharding that propagation wants the canonical version. Group
  // sizes remain the device's own shares.
  absl::Status Keep(ValueId value, LocalValue natural) {
    const Sharding& wanted = shardings_.of[value];
    const bool is_sizes =
        natural.sharding.partial.size() > 0 && l_.IsGroupSizes(value);
    const bool crosses = !wanted.IsReplicated() &&
                         mesh_.RoleOf(wanted.UsedAxes()[0]) != natural.role;
    if (is_sizes || crosses || natural.sharding == wanted) {
      return absl::OkStatus();
    }
    const Shape& shape = program_.type(value).shape;
    if (!shape.empty() && !l_.HasShares(shape[0], wanted.dims[0].token_axes)) {
      return absl::OkStatus();
    }
    // A value stays on the role that computed it until it is needed elsewhere;
    // so does a partial sum, which may be completed at its destination.
    if (natural.role != 0 &&
        (wanted.IsReplicated() || !natural.sharding.partial.empty())) {
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(const ValueId made,
                     l_.Reshard(value, wanted, natural.role));
    l_.SetCanonical(value, {made, wanted, natural.role});
    return absl::OkStatus();
  }

  absl::Status LowerSource(const Node& node) {
    const ValueId value = node.outputs[0];
    Sharding wanted = shardings_.of[value];
    Axes used = wanted.UsedAxes();
    // Inputs arrive at the first role unless annotated otherwise.
    if (node.op->name == "input" && !used.empty() &&
        mesh_.RoleOf(used[0]) != 0 &&
        shardings_.origins[value].kind != Origin::kAnnotation) {
      wanted = Sharding::Replicated(wanted.dims.size());
      used.clear();
    }
    LocalValue local{.value = kNoValue,
                     .sharding = wanted,
                     .role = used.empty() ? 0 : mesh_.RoleOf(used[0])};
    Attributes attributes = node.attributes;
    attributes["shape"] = LocalShape(program_.type(value).shape, wanted, mesh_);
    l_.SetRole(local.role);
    local.value = l_.AddOne(node.op->name, {}, std::move(attributes));
    l_.AddVersion(value, local);
    RETURN_IF_ERROR(l_.b.status());
    const Placed placed = PlacedAs(value);
    const std::string& name = StringAttribute(node.attributes, "name");
    (node.op->name == "input" ? partitioned_.inputs : partitioned_.parameters)
        .emplace(name, placed);
    local.value = Reorder(local.value, placed, /*inverse=*/false);
    l_.SetCanonical(value, local);
    return l_.b.status();
  }

  // Permutes tiles from an assignment's device order to the mesh's, or back.
  ValueId Reorder(ValueId x, const Placed& placed, bool inverse) {
    if (placed.device_order.empty()) return x;
    const Shape& shape = placed.type.shape;
    if (!shape.empty() && l_.GroupSizes(shape[0]) != kNoValue &&
        !placed.sharding.dims[0].empty()) {
      // Parts of different sizes cannot be swapped.
      l_.b.Fail(absl::UnimplementedError(
          absl::StrCat("ragged rows ", placed.type.ToString(),
                       " cannot be assigned to devices in another order")));
      return x;
    }
    std::vector<int64_t> source = placed.device_order;
    if (inverse) {
      for (size_t i = 0; i < source.size(); ++i) {
        source[placed.device_order[i]] = i;
      }
    }
    Attributes attributes = l_.Along(mesh_.AxesOfRole(placed.role),
                                     {{"shape", l_.b.type(x).shape}});
    attributes["source"] = std::move(source);
    return l_.AddOne("permute", {x}, std::move(attributes));
  }

  // Keeps what the outputs need, and what binds sizes.
  void Prune(Program whole) {
    const size_t outputs = whole.outputs.size();
    for (const ValueId value : l_.kept) whole.outputs.emplace_back("", value);
    std::vector<ValueId> renamed;
    partitioned_.program = Pruned(whole, &renamed);
    partitioned_.program.outputs.resize(outputs);
    partitioned_.roles.assign(partitioned_.program.values.size(), 0);
    for (size_t v = 0; v < renamed.size(); ++v) {
      if (renamed[v] != kNoValue) {
        partitioned_.roles[renamed[v]] = l_.value_roles[v];
      }
    }
    partitioned_.wholes.assign(partitioned_.roles.size(), kNoValue);
    partitioned_.shardings.resize(partitioned_.roles.size());
    for (size_t whole_value = 0; whole_value < l_.versions_.size();
         ++whole_value) {
      for (const LocalValue& form : l_.versions_[whole_value]) {
        const ValueId local = renamed[form.value];
        if (local == kNoValue || partitioned_.wholes[local] != kNoValue) {
          continue;
        }
        partitioned_.wholes[local] = static_cast<ValueId>(whole_value);
        partitioned_.shardings[local] = form.sharding;
      }
    }
  }

  const Program& program_;
  const DeviceMesh& mesh_;
  const Shardings& shardings_;
  Lowering l_;
  Partitioned partitioned_;
};

absl::StatusOr<Partitioned> Partition(const Program& program,
                                      const DeviceMesh& mesh,
                                      const PartitionOptions& options) {
  RegisterCollectiveOps();
  RegisterStandardLowerings();
  ASSIGN_OR_RETURN(const Shardings shardings, Propagate(program, mesh));
  return Partitioner(program, mesh, shardings, options).Run();
}

}  // namespace gshard
