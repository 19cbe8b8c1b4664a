#include "services/sharding/propagation.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

// A possible split of a factor of a node, according to one of the node's
// values.
struct Fact {
  Axes axes;
  ValueId from = kNoValue;
  double size = 0;  // size of the value
};

// A fact about one dimension of one value.
struct Proposal {
  ValueId value = kNoValue;
  int dim = 0;
  bool token = false;
  bool pass_through = false;
  Fact fact;
  int32_t through = -1;

  // Smaller is more important. The neighbour, at the end, only makes the order
  // total: keys equal up to there mean the same change.
  auto Key() const {
    return std::tuple(value, !pass_through, -fact.size,
                      -static_cast<int64_t>(fact.axes.size()), dim, token,
                      fact.axes, fact.from, through);
  }
};

// Number of elements of a value, for comparisons; symbols count as a thousand.
double Size(const ValueType& type) {
  double size = 1;
  for (const Dim& dim : type.shape) {
    size *= static_cast<double>(dim.coefficient());
    for (size_t i = 0; i < dim.symbols().size(); ++i) size *= 1000;
  }
  return size;
}

class Propagation {
 public:
  Propagation(const Program& program, const DeviceMesh& mesh)
      : program_(program), mesh_(mesh), neighbours_(program.values.size()) {}

  absl::StatusOr<Shardings> Run() {
    RETURN_IF_ERROR(Start());
    for (const bool all : {false, true}) {
      std::vector<int32_t> nodes(program_.nodes.size());
      for (size_t n = 0; n < nodes.size(); ++n) nodes[n] = n;
      while (!nodes.empty()) nodes = Round(nodes, all);
    }
    return std::move(found_);
  }

 private:
  absl::Status Start() {
    for (size_t n = 0; n < program_.nodes.size(); ++n) {
      const Node& node = program_.nodes[n];
      found_.rules.push_back(RuleOf(program_, node));
      for (const ValueId value : node.inputs) neighbours_[value].push_back(n);
      for (const ValueId value : node.outputs) neighbours_[value].push_back(n);
    }
    FindRows();
    for (size_t v = 0; v < program_.values.size(); ++v) {
      sizes_.push_back(Size(program_.values[v].type));
      ASSIGN_OR_RETURN(std::optional<Annotation> annotation,
                       GetAnnotation(program_, v, mesh_));
      found_.origins.emplace_back();
      found_.device_orders.emplace_back();
      if (annotation.has_value()) {
        found_.of.push_back(std::move(annotation->sharding));
        found_.origins.back().kind = Origin::kAnnotation;
        found_.device_orders.back() = std::move(annotation->device_order);
      } else {
        found_.of.push_back(
            Sharding::Replicated(program_.values[v].type.shape.size()));
      }
    }
    // Manual regions extend from values that enter to those that leave.
    for (const Node& node : program_.nodes) {
      const bool inside =
          node.op->name == "enter_manual" ||
          (node.op->name != "leave_manual" &&
           std::any_of(node.inputs.begin(), node.inputs.end(),
                       [&](ValueId v) { return found_.IsManual(v); }));
      if (!inside) continue;
      for (const ValueId value : node.outputs) {
        if (found_.origins[value].kind == Origin::kAnnotation) {
          return absl::InvalidArgumentError(
              absl::StrCat(program_.type(value).ToString(), " annotated ",
                           program_.values[value].sharding,
                           ": it belongs to a manual region"));
        }
        found_.origins[value].kind = Origin::kManual;
      }
    }
    return absl::OkStatus();
  }

  // Rows are ragged wherever their symbol occurs, even in operators that do not
  // care.
  void FindRows() {
    std::set<std::string> rows;
    for (size_t n = 0; n < program_.nodes.size(); ++n) {
      const Node& node = program_.nodes[n];
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (!found_.rules[n].operand_rule(i).own_share) continue;
        const Dim& dim = program_.type(node.inputs[0]).shape[0];
        if (!dim.is_static()) rows.insert(dim.ToString());
      }
    }
    if (rows.empty()) return;
    for (size_t n = 0; n < program_.nodes.size(); ++n) {
      found_.rules[n] = WithRaggedRows(
          std::move(found_.rules[n]), program_, program_.nodes[n],
          [&](const Dim& dim) { return rows.count(dim.ToString()) > 0; });
    }
  }

  // The facts that a node's values imply about its factors.
  std::vector<std::vector<Fact>> Facts(const Node& node, const OpRule& rule) {
    std::vector<std::vector<Fact>> facts(rule.factors.size());
    const auto read = [&](ValueId value, const std::vector<DimFactors>& dims) {
      for (size_t d = 0; d < dims.size(); ++d) {
        const DimSharding& sharding = found_.of[value].dims[d];
        const auto add = [&](int factor, const Axes& axes) {
          if (axes.empty() || rule.factors[factor].whole) return;
          if (!KeepsMultiples(program_, node, rule, factor,
                              mesh_.Parts(axes))) {
            return;
          }
          facts[factor].push_back({axes, value, sizes_[value]});
        };
        add(dims[d].front(), sharding.axes);
        if (dims[d].size() > 1) add(dims[d].back(), sharding.token_axes);
      }
    };
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (rule.operand_rule(i).own_share) continue;
      read(node.inputs[i], rule.operands[i]);
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      read(node.outputs[i], rule.results[i]);
    }
    return facts;
  }

  void Propose(int32_t n, std::vector<Proposal>& proposals) {
    const Node& node = program_.nodes[n];
    const OpRule& rule = found_.rules[n];
    const std::vector<std::vector<Fact>> facts = Facts(node, rule);
    const auto tell = [&](ValueId value, const std::vector<DimFactors>& dims) {
      if (found_.origins[value].kind == Origin::kAnnotation ||
          found_.IsManual(value)) {
        return;
      }
      for (size_t d = 0; d < dims.size(); ++d) {
        const auto add = [&](int factor, bool token) {
          for (const Fact& fact : facts[factor]) {
            if (fact.from == value) continue;
            proposals.push_back({value, static_cast<int>(d), token,
                                 rule.pass_through, fact, n});
          }
        };
        const bool ragged = rule.ragged && dims[d].size() == 2;
        // Rows whose number is not a symbol are not a ragged batch.
        if (ragged && program_.type(value).shape[d].is_static()) continue;
        add(dims[d].front(), /*token=*/false);
        if (ragged) add(dims[d].back(), /*token=*/true);
      }
    };
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (rule.operand_rule(i).own_share) continue;
      tell(node.inputs[i], rule.operands[i]);
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      tell(node.outputs[i], rule.results[i]);
    }
  }

  // Accepts a proposal if it refines the known sharding.
  bool Accept(const Proposal& proposal) {
    Sharding& sharding = found_.of[proposal.value];
    DimSharding& dim = sharding.dims[proposal.dim];
    Axes& axes = proposal.token ? dim.token_axes : dim.axes;
    const Axes& wanted = proposal.fact.axes;
    if (!IsProperPrefix(axes, wanted)) return false;
    const int role = mesh_.RoleOf(wanted[0]);
    for (const int used : sharding.UsedAxes()) {
      if (mesh_.RoleOf(used) != role) return false;
    }
    for (size_t i = axes.size(); i < wanted.size(); ++i) {
      if (sharding.Uses(wanted[i])) return false;
    }
    axes = wanted;
    found_.origins[proposal.value] = {Origin::kPropagated, proposal.fact.from,
                                      proposal.through};
    return true;
  }

  // One round over `nodes`, ascending. Returns the nodes to revisit.
  std::vector<int32_t> Round(const std::vector<int32_t>& nodes, bool all) {
    std::vector<Proposal> proposals;
    for (const int32_t n : nodes) {
      if (all || found_.rules[n].pass_through) Propose(n, proposals);
    }
    std::sort(
        proposals.begin(), proposals.end(),
        [](const Proposal& a, const Proposal& b) { return a.Key() < b.Key(); });
    std::vector<int32_t> again;
    for (const Proposal& proposal : proposals) {
      if (!Accept(proposal)) continue;
      const std::vector<int32_t>& around = neighbours_[proposal.value];
      again.insert(again.end(), around.begin(), around.end());
    }
    std::sort(again.begin(), again.end());
    again.erase(std::unique(again.begin(), again.end()), again.end());
    return again;
  }

  const Program& program_;
  const DeviceMesh& mesh_;
  std::vector<std::vector<int32_t>> neighbours_;  // nodes at each value
  std::vector<double> sizes_;
  Shardings found_;
};

}  // namespace

absl::StatusOr<Shardings> Propagate(const Program& program,
                                    const DeviceMesh& mesh) {
  return Propagation(program, mesh).Run();
}

std::string Explain(const Program& program, const DeviceMesh& mesh,
                    const Shardings& shardings) {
  std::string text;
  for (size_t v = 0; v < program.values.size(); ++v) {
    const Origin& origin = shardings.origins[v];
    if (origin.kind == Origin::kNothing) continue;
    if (origin.kind == Origin::kManual) {
      absl::StrAppend(&text, "v", v, " ", program.type(v).ToString(),
                      " each device's own\n");
      continue;
    }
    absl::StrAppend(&text, "v", v, " ", program.type(v).ToString(), " ",
                    shardings.of[v].ToString(mesh));
    if (origin.kind == Origin::kAnnotation) {
      absl::StrAppend(&text, " annotated ", program.values[v].sharding, "\n");
    } else {
      absl::StrAppend(&text, " from v", origin.from, " through ",
                      program.nodes[origin.through].op->name, "\n");
    }
  }
  return text;
}

}  // namespace gshard
