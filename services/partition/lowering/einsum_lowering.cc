// einsum: the windowed form, if all devices would gather a large operand
// (GShard, arXiv 2006.16668, section 3.3.2). Its parts are passed around
// instead, so that a device never holds more than its own part and one more.

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/ops/einsum.h"
#include "services/partition/lowering.h"
#include "services/partition/lowering/standard_lowerings.h"
#include "services/partition/reshard.h"

namespace gshard {
namespace {

struct Gathered {
  int operand = 0;
  int dim = 0;
};

// The only dimension that differs, if it is wanted whole and available in
// parts.
std::optional<int> GatheredDim(const Sharding& have, const Sharding& want,
                               const DeviceMesh& mesh) {
  std::optional<int> gathered;
  if (!have.partial.empty() || !want.partial.empty()) return std::nullopt;
  for (size_t d = 0; d < have.dims.size(); ++d) {
    if (have.dims[d] == want.dims[d]) continue;
    const bool joins = want.dims[d].empty() && have.dims[d].token_axes.empty();
    if (!joins || gathered.has_value()) return std::nullopt;
    if (mesh.Parts(have.dims[d].axes) < 2) return std::nullopt;
    gathered = static_cast<int>(d);
  }
  return gathered;
}

// Whether devices along the axes would compute the same sum, each starting with
// its own part: but copies of a value must have the same bits.
bool AddsUpCopies(const std::vector<DimFactors>& result, int summed,
                  const Sharding& sharding, const Axes& along) {
  for (const DimFactors& factors : result) {
    if (factors[0] == summed) return false;
  }
  return std::any_of(along.begin(), along.end(),
                     [&](int axis) { return !sharding.Uses(axis); });
}

LoweredValues LowerEinsum(Lowering& l, const Node& node) {
  const OpRule rule = RuleOf(l.program, node);
  const Lowering::FactorAxes axes = l.ChooseAxes(node, rule);
  std::optional<Gathered> largest;
  double most = static_cast<double>(l.options.windowed_einsum_bytes);
  for (int i = 0; i < 2; ++i) {
    const ValueId value = node.inputs[i];
    const LocalValue& have = l.Canonical(value);
    const Sharding want = l.ShardingFor(rule.operands[i], rule, axes);
    const std::optional<int> dim = GatheredDim(have.sharding, want, l.mesh);
    if (!dim.has_value() || have.role != axes.role) continue;
    const Shape& shape = l.Type(value).shape;
    if (l.GroupSizes(shape[0]) != kNoValue && *dim == 0) continue;
    if (AddsUpCopies(rule.results[0], rule.operands[i][*dim][0],
                     l.ShardingFor(rule.results[0], rule, axes),
                     have.sharding.dims[*dim].axes)) {
      continue;
    }
    const double bytes = sizeof(float) * RoughSize(shape, want, l.mesh);
    if (bytes < most) continue;
    most = bytes;
    largest = {.operand = i, .dim = *dim};
  }
  if (!largest.has_value()) return l.LowerByRule(node, rule, axes);

  const int moving = largest->operand;
  const ValueId value = node.inputs[moving];
  const Shape& shape = l.Type(value).shape;
  const LocalValue have = l.Canonical(value);
  std::vector<ValueId> operands(2);
  ASSIGN_OR_RETURN(operands[1], l.Operand(node, rule, axes, 1 - moving));
  l.SetRole(axes.role);
  // The padding after the letter's end is not read.
  operands[0] = have.value;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (static_cast<int>(d) == largest->dim) continue;
    operands[0] = l.MaskPadding(operands[0], shape, have.sharding, d,
                                /*identity=*/0.0);
  }
  ASSIGN_OR_RETURN(const EinsumSpec spec,
                   ParseEinsum(StringAttribute(node.attributes, "equation")));
  const std::string& first = moving == 0 ? spec.a : spec.b;
  const std::string& second = moving == 0 ? spec.b : spec.a;
  const ValueId y = l.AddOne(
      "windowed_einsum", operands,
      l.Along(
          have.sharding.dims[largest->dim].axes,
          {{"equation", absl::StrCat(first, ",", second, "->", spec.result)},
           {"letter", first.substr(largest->dim, 1)},
           {"whole", Shape{shape[largest->dim]}}}));
  Sharding sharding = l.ShardingFor(rule.results[0], rule, axes);
  sharding.partial = l.MissingAxes(rule.results[0], rule, axes);
  return std::vector<LocalValue>{
      {.value = y, .sharding = sharding, .role = axes.role}};
}

}  // namespace

void RegisterEinsumLowerings() { RegisterLowering("einsum", LowerEinsum); }

}  // namespace gshard
