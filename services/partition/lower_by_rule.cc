// The generic part of Lowering: running an operator on local operands.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/partition/dynamic_dims.h"
#include "services/partition/lowering.h"

namespace gshard {

Sharding Lowering::ShardingFor(const std::vector<DimFactors>& dims,
                               const OpRule& rule,
                               const FactorAxes& axes) const {
  Sharding sharding = Sharding::Replicated(dims.size());
  for (size_t d = 0; d < dims.size(); ++d) {
    sharding.dims[d].axes = axes.of[dims[d].front()];
    if (rule.ragged && dims[d].size() == 2) {
      sharding.dims[d].token_axes = axes.of[dims[d].back()];
    }
  }
  return sharding;
}

Axes Lowering::MissingAxes(const std::vector<DimFactors>& dims, const OpRule&,
                           const FactorAxes& axes) const {
  Axes missing;
  for (size_t f = 0; f < axes.of.size(); ++f) {
    if (HasFactor(dims, f)) continue;
    missing.insert(missing.end(), axes.of[f].begin(), axes.of[f].end());
  }
  std::sort(missing.begin(), missing.end());
  return missing;
}

absl::StatusOr<ValueId> Lowering::Operand(const Node& node, const OpRule& rule,
                                          const FactorAxes& axes, size_t i) {
  const ValueId value = node.inputs[i];
  const std::vector<DimFactors>& dims = rule.operands[i];
  const OperandRule operand = rule.operand_rule(i);
  Sharding sharding = ShardingFor(dims, rule, axes);
  if (operand.own_share) {
    // For rows split by token; other splits concern the widths.
    for (size_t f = 0; f < rule.factors.size(); ++f) {
      for (const std::vector<DimFactors>& other : rule.operands) {
        for (const DimFactors& factors : other) {
          if (rule.ragged && factors.size() == 2 &&
              factors.back() == static_cast<int>(f) &&
              sharding.partial.empty()) {
            sharding.partial = axes.of[f];
          }
        }
      }
    }
  }
  ASSIGN_OR_RETURN(ValueId x, Reshard(value, sharding, axes.role));
  for (size_t d = 0; d < dims.size(); ++d) {
    if (rule.ragged && dims[d].size() == 2) continue;
    const int factor = dims[d].front();
    const bool summed = std::any_of(rule.results.begin(), rule.results.end(),
                                    [&](const std::vector<DimFactors>& result) {
                                      return !HasFactor(result, factor);
                                    });
    if (operand.mask_always || summed) {
      x = MaskPadding(x, Type(value).shape, sharding, d, operand.identity);
    }
    if (rule.factors[factor].multiple > 1 && !axes.of[factor].empty() &&
        !Type(value).shape[d].is_static() && mesh.Parts(axes.of[factor]) > 1) {
      x = AddOne("check_multiple", {x},
                 {{"dim", static_cast<int64_t>(d)},
                  {"multiple", rule.factors[factor].multiple}});
    }
  }
  return x;
}

LoweredValues Lowering::LowerByRule(const Node& node, const OpRule& rule,
                                    const FactorAxes& axes,
                                    absl::string_view op,
                                    const Attributes& more) {
  SetRole(axes.role);
  std::vector<ValueId> operands(node.inputs.size());
  // Group sizes are resharded together with their rows.
  for (const bool own_share : {false, true}) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (rule.operand_rule(i).own_share != own_share) continue;
      ASSIGN_OR_RETURN(operands[i], Operand(node, rule, axes, i));
    }
  }
  std::vector<LocalValue> results(node.outputs.size());
  std::vector<Shape> shapes;
  for (size_t i = 0; i < results.size(); ++i) {
    results[i].sharding = ShardingFor(rule.results[i], rule, axes);
    results[i].sharding.partial = MissingAxes(rule.results[i], rule, axes);
    results[i].role = axes.role;
    shapes.push_back(
        LocalShape(Type(node.outputs[i]).shape, results[i].sharding, mesh));
    RETURN_IF_ERROR(BindDynamicDims(
        *this, operands, Type(node.outputs[i]).shape, results[i].sharding));
  }
  Attributes attributes = node.attributes;
  // A shape attribute is the result's.
  if (auto found = attributes.find("shape"); found != attributes.end()) {
    found->second = shapes[0];
  }
  if (auto found = attributes.find("rows"); found != attributes.end()) {
    found->second = Shape{shapes[0][0]};
  }
  for (const auto& [name, attribute] : more) attributes[name] = attribute;
  SetRole(axes.role);
  const std::vector<ValueId> values =
      Add(op.empty() ? absl::string_view(node.op->name) : op,
          std::move(operands), std::move(attributes));
  RETURN_IF_ERROR(b.status());
  for (size_t i = 0; i < results.size(); ++i) {
    results[i].value = values[i];
    if (b.type(values[i]).shape != shapes[i]) {
      return absl::InternalError(absl::StrCat(
          node.op->name, ": a device computes ", b.type(values[i]).ToString(),
          ", its part of the result is ", ShapeToString(shapes[i])));
    }
    if (rule.reduction != Reduction::kSum) {
      results[i].value =
          AllReduce(values[i], results[i].sharding.partial, rule.reduction);
      results[i].sharding.partial.clear();
    }
  }
  return results;
}

}  // namespace gshard
