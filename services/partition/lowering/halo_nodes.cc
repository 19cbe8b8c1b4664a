#include "services/partition/lowering/halo_nodes.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

constexpr int64_t kMaxHops = 2;

// `size` elements from start(i) on.
ValueId SliceAt(Lowering& l, ValueId x, int dim, const Axes& axes,
                const LinearForm& start, int64_t size) {
  const int64_t first = start.At(0);
  if (first == start.At(l.mesh.Parts(axes) - 1)) {
    return l.Slice(x, dim, first, first + size);
  }
  return DynamicSliceNode(l, x, dim, FormNode(l, axes, start), size);
}

// The slice of step 4 out of the whole dimension.
ValueId SliceOfWhole(Lowering& l, ValueId x, int dim, const Axes& axes,
                     const Halo& halo) {
  LinearForm start = halo.plan.start;
  const int64_t last = start.At(l.mesh.Parts(axes) - 1);
  const int64_t low = std::max<int64_t>(-std::min(start.At(0), last), 0);
  const int64_t end = std::max(start.At(0), last) + halo.plan.slice_size;
  x = l.PadZeros(x, dim, low, std::max<int64_t>(end - halo.request.base, 0));
  start.offset += low * start.divisor;
  return SliceAt(l, x, dim, axes, start, halo.plan.slice_size);
}

// Whether a result of the whole reads beyond the last element.
bool SeesPadding(const Halo& halo) {
  return halo.request.window.pad_high > 0 ||
         halo.plan.dilation_case == DilationCase::kShiftWindow;
}

std::optional<std::vector<Halo>> Plan(const Lowering& l, const Axes& axes,
                                      const HaloRequests& requests) {
  if (l.mesh.IsElastic(axes)) return std::nullopt;
  std::optional<std::vector<HaloRequest>> asked = requests(axes);
  if (!asked.has_value()) return std::nullopt;
  std::vector<Halo> halos;
  for (const HaloRequest& request : *asked) {
    absl::StatusOr<HaloPlan> plan = PlanHalo(request);
    if (!plan.ok()) return std::nullopt;
    halos.push_back({request, *std::move(plan)});
  }
  return halos;
}

}  // namespace

const Halo* HaloCuts::Find(int factor, size_t operand) const {
  const auto found = halos.find(factor);
  if (found == halos.end() || found->second.empty()) return nullptr;
  return &found->second[std::min(operand, found->second.size() - 1)];
}

HaloCuts ChooseCuts(const Lowering& l, const Node& node, OpRule rule,
                    const std::map<int, HaloRequests>& moved) {
  // A factor without a plan releases its axes, so the choice is repeated.
  for (;;) {
    HaloCuts cuts = {rule, l.ChooseAxes(node, rule), {}};
    bool planned = true;
    for (const auto& [factor, requests] : moved) {
      const Axes& axes = cuts.axes.of[factor];
      if (l.mesh.Parts(axes) == 1) continue;
      std::optional<std::vector<Halo>> halos = Plan(l, axes, requests);
      if (halos.has_value()) {
        cuts.halos[factor] = *std::move(halos);
      } else {
        rule.factors[factor].whole = true;
        planned = false;
      }
    }
    if (planned) return cuts;
  }
}

bool IsNear(const HaloPlan& plan, int64_t parts) {
  return plan.left_hops <= kMaxHops && plan.right_hops <= kMaxHops &&
         plan.fetch_left + plan.fetch_right <= plan.base_shard * (parts - 1);
}

bool HasUncutVersion(const Lowering& l, ValueId value, size_t dim) {
  const std::vector<LocalValue>& forms = l.Versions(value);
  return std::any_of(forms.begin(), forms.end(), [&](const LocalValue& form) {
    return form.sharding.partial.empty() &&
           l.mesh.Parts(form.sharding.dims[dim].axes) == 1;
  });
}

absl::StatusOr<ValueId> HaloOperand(Lowering& l, const Node& node,
                                    const HaloCuts& cuts, size_t i, bool mask) {
  const std::vector<DimFactors>& dims = cuts.rule.operands[i];
  Lowering::FactorAxes axes = cuts.axes;
  std::vector<const Halo*> halos;
  for (size_t d = 0; d < dims.size(); ++d) {
    const int factor = dims[d].front();
    halos.push_back(cuts.Find(factor, i));
    if (halos[d] == nullptr) continue;
    if (HasUncutVersion(l, node.inputs[i], d) ||
        !IsNear(halos[d]->plan, l.mesh.Parts(axes.of[factor]))) {
      axes.of[factor].clear();
    }
  }
  ASSIGN_OR_RETURN(ValueId x, l.Operand(node, cuts.rule, axes, i));
  l.SetRole(cuts.axes.role);
  for (size_t d = 0; d < dims.size(); ++d) {
    if (halos[d] == nullptr) continue;
    const int factor = dims[d].front();
    const Axes& along = cuts.axes.of[factor];
    x = axes.of[factor].empty() ? SliceOfWhole(l, x, d, along, *halos[d])
                                : ExchangeHalo(l, x, d, along, halos[d]->plan,
                                               mask && SeesPadding(*halos[d]));
  }
  RETURN_IF_ERROR(l.b.status());
  return x;
}

ValueId ExchangeHalo(Lowering& l, ValueId x, int dim, const Axes& axes,
                     const HaloPlan& plan, bool mask) {
  const int64_t own = plan.base_shard;
  if (mask && plan.masks) {
    x = l.AddOne("mask_padding", {x},
                 l.Along(axes, {{"dim", static_cast<int64_t>(dim)},
                                {"size", plan.own_valid.offset},
                                {"value", 0.0}}));
  }
  std::vector<ValueId> row;
  for (int64_t hop = plan.left_hops; hop > 0; --hop) {
    const int64_t count = std::min(own, plan.fetch_left - (hop - 1) * own);
    row.push_back(l.AddOne("shift", {l.Slice(x, dim, own - count, own)},
                           l.Along(axes, {{"by", hop}})));
  }
  row.push_back(x);
  for (int64_t hop = 1; hop <= plan.right_hops; ++hop) {
    const int64_t count = std::min(own, plan.fetch_right - (hop - 1) * own);
    row.push_back(l.AddOne("shift", {l.Slice(x, dim, 0, count)},
                           l.Along(axes, {{"by", -hop}})));
  }
  if (row.size() > 1) {
    x = l.AddOne("concat", std::move(row),
                 {{"dim", static_cast<int64_t>(dim)}});
  }
  x = l.PadZeros(x, dim, plan.zeros_left, plan.zeros_right);
  return SliceAt(l, x, dim, axes, plan.slice_start, plan.slice_size);
}

ValueId FormNode(Lowering& l, const Axes& axes, const LinearForm& form) {
  return l.AddOne("part_floor", {},
                  {{"axes", l.mesh.Names(axes)},
                   {"multiplier", form.multiplier},
                   {"offset", form.offset},
                   {"divisor", form.divisor}});
}

ValueId FormNode(Lowering& l, const Axes& axes, const RemainderForm& form,
                 int64_t factor, int64_t add) {
  return l.AddOne("part_remainder", {},
                  {{"axes", l.mesh.Names(axes)},
                   {"multiplier", form.multiplier},
                   {"offset", form.offset},
                   {"divisor", form.divisor},
                   {"factor", factor},
                   {"add", add - factor * form.least}});
}

ValueId DynamicSliceNode(Lowering& l, ValueId x, int dim, ValueId start,
                         int64_t size) {
  return l.AddOne("dynamic_slice", {x, start},
                  {{"dim", static_cast<int64_t>(dim)}, {"size", size}});
}

LoweredValues HaloResult(Lowering& l, const Node& node, const HaloCuts& cuts,
                         ValueId value) {
  RETURN_IF_ERROR(l.b.status());
  Sharding sharding = l.ShardingFor(cuts.rule.results[0], cuts.rule, cuts.axes);
  sharding.partial = l.MissingAxes(cuts.rule.results[0], cuts.rule, cuts.axes);
  const Shape shape =
      LocalShape(l.Type(node.outputs[0]).shape, sharding, l.mesh);
  if (l.b.type(value).shape != shape) {
    return absl::InternalError(absl::StrCat(
        node.op->name, ": a device computes ", l.b.type(value).ToString(),
        ", its part of the result is ", ShapeToString(shape)));
  }
  return std::vector<LocalValue>{{value, sharding, cuts.axes.role}};
}

}  // namespace gshard
