// reshape where the outermost dimension of a group with the same elements is
// split before and after: a device has a range of elements either way, though
// not always the same one, and gets the missing ones from its neighbours.

#include <numeric>

#include "services/base/status_macros.h"
#include "services/partition/lowering/halo_nodes.h"
#include "services/partition/lowering/standard_lowerings.h"
#include "services/sharding/reshape_groups.h"

namespace gshard {
namespace {

Dim Product(const Shape& shape, size_t begin, size_t end) {
  return std::accumulate(shape.begin() + begin, shape.begin() + end, Dim(1),
                         [](const Dim& a, const Dim& b) { return a * b; });
}

class ReshapeNode {
 public:
  ReshapeNode(Lowering& l, const Node& node)
      : l_(l),
        node_(node),
        from_(l.Type(node.inputs[0]).shape),
        to_(l.Type(node.outputs[0]).shape),
        groups_(ReshapeGroups(from_, to_)) {
    const OpRule rule = RuleOfGroups();
    std::map<int, HaloRequests> moved;
    for (const ReshapeGroup& group : groups_) {
      const bool one_to_one = group.from_end - group.from_begin == 1 &&
                              group.to_end - group.to_begin == 1;
      if (one_to_one) continue;
      moved[rule.operands[0][group.from_begin].front()] =
          [this, group](const Axes& axes) { return Requests(group, axes); };
    }
    cuts_ = ChooseCuts(l, node, rule, moved);
  }

  LoweredValues Lower() {
    bool moves = false;
    for (const auto& [factor, halos] : cuts_.halos) {
      moves = moves || !halos.empty();
    }
    if (!moves) return l_.LowerByRule(node_, cuts_.rule, cuts_.axes);
    ASSIGN_OR_RETURN(ValueId x, l_.Operand(node_, cuts_.rule, cuts_.axes, 0));
    l_.SetRole(cuts_.axes.role);
    // Each group is [units, elements of a unit]; units move.
    const Shape local = l_.b.type(x).shape;
    Shape folded;
    for (const ReshapeGroup& group : groups_) {
      const int64_t unit = HaloOf(group) == nullptr ? 1 : Unit(group);
      const Dim size = Product(local, group.from_begin, group.from_end);
      folded.push_back(unit == 1 ? size : Dim(size.size() / unit));
      folded.push_back(Dim(unit));
    }
    x = l_.AddOne("reshape", {x}, {{"shape", folded}});
    for (size_t g = 0; g < groups_.size(); ++g) {
      const Halo* const halo = HaloOf(groups_[g]);
      if (halo == nullptr) continue;
      x = ExchangeHalo(l_, x, 2 * g, cuts_.axes.of[FactorOf(groups_[g])],
                       halo->plan, /*mask=*/false);
    }
    const Sharding sharding =
        l_.ShardingFor(cuts_.rule.results[0], cuts_.rule, cuts_.axes);
    x = l_.AddOne("reshape", {x},
                  {{"shape", LocalShape(to_, sharding, l_.mesh)}});
    return HaloResult(l_, node_, cuts_, x);
  }

 private:
  // The outermost dimensions of a group are one factor, all others are whole.
  OpRule RuleOfGroups() const {
    OpRule rule;
    rule.operands.resize(1);
    rule.results.resize(1);
    const auto add = [&](bool whole) {
      rule.factors.push_back({.whole = whole});
      return DimFactors{static_cast<int>(rule.factors.size()) - 1};
    };
    for (size_t d = 0; d < from_.size(); ++d) {
      rule.operands[0].push_back(add(/*whole=*/true));
    }
    for (size_t d = 0; d < to_.size(); ++d) {
      rule.results[0].push_back(add(/*whole=*/true));
    }
    for (const ReshapeGroup& group : groups_) {
      rule.operands[0][group.from_begin] = rule.results[0][group.to_begin] =
          add(/*whole=*/false);
    }
    return rule;
  }

  int FactorOf(const ReshapeGroup& group) const {
    return cuts_.rule.operands[0][group.from_begin].front();
  }
  const Halo* HaloOf(const ReshapeGroup& group) const {
    return cuts_.Find(FactorOf(group), 0);
  }

  // Elements inside of one index of the outermost dimensions; the unit divides
  // both.
  Dim InnerFrom(const ReshapeGroup& group) const {
    return Product(from_, group.from_begin + 1, group.from_end);
  }
  Dim InnerTo(const ReshapeGroup& group) const {
    return Product(to_, group.to_begin + 1, group.to_end);
  }
  int64_t Unit(const ReshapeGroup& group) const {
    return std::gcd(InnerFrom(group).size(), InnerTo(group).size());
  }

  std::optional<std::vector<HaloRequest>> Requests(const ReshapeGroup& group,
                                                   const Axes& axes) const {
    const DimSharding along = {.axes = axes, .token_axes = {}};
    const Dim before = from_[group.from_begin], after = to_[group.to_begin];
    const Dim have = LocalDim(before, along, l_.mesh) * InnerFrom(group);
    const Dim want = LocalDim(after, along, l_.mesh) * InnerTo(group);
    if (have == want) return std::vector<HaloRequest>{};
    // A value that is available whole is reshaped whole and then split.
    if (!have.is_static() || !want.is_static() ||
        HasUncutVersion(l_, node_.inputs[0], group.from_begin)) {
      return std::nullopt;
    }
    const int64_t unit = Unit(group), parts = l_.mesh.Parts(axes);
    const int64_t size = (before * InnerFrom(group)).size();
    const HaloRequest request =
        ReshapeHalo(size / unit, have.size() / unit, want.size() / unit, parts);
    const absl::StatusOr<HaloPlan> plan = PlanHalo(request);
    if (!plan.ok() || !IsNear(*plan, parts)) return std::nullopt;
    return std::vector<HaloRequest>{request};
  }

  Lowering& l_;
  const Node& node_;
  const Shape& from_;
  const Shape& to_;
  std::vector<ReshapeGroup> groups_;
  HaloCuts cuts_;
};

}  // namespace

void RegisterReshapeLowerings() {
  RegisterLowering("reshape", [](Lowering& l, const Node& node) {
    return ReshapeNode(l, node).Lower();
  });
}

}  // namespace gshard
