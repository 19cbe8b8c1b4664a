// Choosing axes for an operator's factors. See Lowering::ChooseAxes.

#include <algorithm>

#include "services/partition/lowering.h"
#include "services/partition/reshard.h"

namespace gshard {
namespace {

// A split of a factor that a value suggests.
struct Candidate {
  Axes axes;
  bool operand = false;
  double size = 0;
};

// The cost of the impossible: more than any other.
constexpr double kImpossible = 1e100;

// The dimension's axes if the factor is alone or comes first.
const Axes* AxesOf(int factor, const DimFactors& factors,
                   const DimSharding& sharding, bool ragged) {
  if (factors.front() == factor) return &sharding.axes;
  if (ragged && factors.size() == 2 && factors.back() == factor) {
    return &sharding.token_axes;
  }
  return nullptr;
}

// Chooses axes for one node.
class AxisChoice {
 public:
  AxisChoice(const Lowering& l, const Node& node, const OpRule& rule)
      : l_(l), node_(node), rule_(rule) {}

  // Tries several ways to assign the axes; the cheapest wins, the first on
  // ties.
  Lowering::FactorAxes Run() {
    Forbid();
    // In a manual region every device computes what the program says.
    for (const ValueId value : node_.outputs) {
      if (l_.shardings.IsManual(value)) forbidden_.assign(forbidden_.size(), 1);
    }
    Lowering::FactorAxes best;
    double least = 0;
    for (const Way way : {kResultsFirst, kOperandsFirst, kSumsFirst, kNoSums}) {
      GiveOut(way);
      const double cost = Cost();
      if (way == kResultsFirst || cost < least) {
        best = axes_;
        least = cost;
      }
    }
    return best;
  }

 private:
  // Which factors get axes that several could have.
  enum Way {
    kResultsFirst,   // factors that results want split
    kOperandsFirst,  // factors that operands split, but not summed ones
    kSumsFirst,      // reduced ones that all operands split alike
    kNoSums          // as kResultsFirst, and nothing is summed
  };

  void GiveOut(Way way) {
    axes_ = {};
    axes_.of.resize(rule_.factors.size());
    used_.clear();
    const auto choose = [&](bool in_results, bool from_results) {
      for (size_t f = 0; f < rule_.factors.size(); ++f) {
        if (InResults(f) == in_results) Choose(f, from_results);
      }
    };
    if (way == kSumsFirst) {
      for (size_t f = 0; f < rule_.factors.size(); ++f) {
        if (!InResults(f) && IsCutInAllOperands(f)) Choose(f, false);
      }
    }
    if (way != kOperandsFirst) choose(/*in_results=*/true, true);
    choose(/*in_results=*/true, false);
    choose(/*in_results=*/true, true);
    if (way != kNoSums) choose(/*in_results=*/false, false);
  }

  // Elements that a device receives before and after the node. Devices of an
  // elastic role cannot communicate; sums are computed where they are sent.
  double Cost() const {
    const bool alone = l_.mesh.IsElastic(l_.mesh.AxesOfRole(axes_.role));
    double cost = 0;
    for (size_t i = 0; i < node_.inputs.size(); ++i) {
      if (rule_.operand_rule(i).own_share) continue;
      const LocalValue& operand = l_.Canonical(node_.inputs[i]);
      const double received =
          ReshardCost(l_.Type(node_.inputs[i]).shape, operand.sharding,
                      l_.ShardingFor(rule_.operands[i], rule_, axes_), l_.mesh);
      const bool impossible =
          alone && operand.role == axes_.role && received > 0;
      cost += impossible ? kImpossible : received;
    }
    for (size_t i = 0; i < node_.outputs.size(); ++i) {
      Sharding natural = l_.ShardingFor(rule_.results[i], rule_, axes_);
      if (!alone) {
        natural.partial = l_.MissingAxes(rule_.results[i], rule_, axes_);
      }
      cost += ReshardCost(l_.Type(node_.outputs[i]).shape, natural,
                          l_.Wanted(node_.outputs[i]), l_.mesh);
    }
    return cost;
  }

  bool InResults(int factor) const {
    return std::any_of(rule_.results.begin(), rule_.results.end(),
                       [&](const std::vector<DimFactors>& dims) {
                         return HasFactor(dims, factor);
                       });
  }

  template <typename Function>
  void ForEachDim(Function visit) const {
    for (size_t i = 0; i < node_.inputs.size(); ++i) {
      for (size_t d = 0; d < rule_.operands[i].size(); ++d) {
        visit(node_.inputs[i], rule_.operands[i][d], d, /*operand=*/true, i);
      }
    }
    for (size_t i = 0; i < node_.outputs.size(); ++i) {
      for (size_t d = 0; d < rule_.results[i].size(); ++d) {
        visit(node_.outputs[i], rule_.results[i][d], d, /*operand=*/false, i);
      }
    }
  }

  // Factors that must be whole: by the rule, or since ragged rows have a known
  // number.
  void Forbid() {
    forbidden_.assign(rule_.factors.size(), false);
    for (size_t f = 0; f < rule_.factors.size(); ++f) {
      forbidden_[f] = rule_.factors[f].whole;
    }
    if (!rule_.ragged) return;
    ForEachDim(
        [&](ValueId value, const DimFactors& factors, size_t d, bool, size_t) {
          if (factors.size() < 2) return;
          if (l_.GroupSizes(l_.Type(value).shape[d]) != kNoValue) return;
          for (const int f : factors) forbidden_[f] = true;
        });
  }

  std::vector<Candidate> Candidates(int f) const {
    std::vector<Candidate> candidates;
    ForEachDim([&](ValueId value, const DimFactors& factors, size_t d,
                   bool operand, size_t i) {
      if (operand && rule_.operand_rule(i).own_share) return;
      const DimSharding& sharding = operand
                                        ? l_.Canonical(value).sharding.dims[d]
                                        : l_.Wanted(value).dims[d];
      const Axes* axes = AxesOf(f, factors, sharding, rule_.ragged);
      if (axes == nullptr || axes->empty()) return;
      const Shape& shape = l_.Type(value).shape;
      candidates.push_back(
          {*axes, operand,
           RoughSize(shape, Sharding::Replicated(shape.size()), l_.mesh)});
    });
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& a, const Candidate& b) {
                       return std::pair(a.operand, -a.size) <
                              std::pair(b.operand, -b.size);
                     });
    return candidates;
  }

  bool IsFree(const Axes& axes) const {
    for (const int a : axes) {
      if (Contains(used_, a)) return false;
      if (!used_.empty() && l_.mesh.RoleOf(a) != axes_.role) return false;
    }
    return true;
  }

  bool IsCutInAllOperands(int f) const {
    const Axes* first = nullptr;
    bool alike = true;
    ForEachDim([&](ValueId value, const DimFactors& factors, size_t d,
                   bool operand, size_t i) {
      if (!operand || rule_.operand_rule(i).own_share) return;
      const Axes* axes = AxesOf(
          f, factors, l_.Canonical(value).sharding.dims[d], rule_.ragged);
      if (axes == nullptr) return;
      if (first == nullptr) first = axes;
      alike = alike && !axes->empty() && *axes == *first;
    });
    return alike && first != nullptr;
  }

  // Gives a factor the axes that a result wants, or that an operand has.
  void Choose(int f, bool from_results) {
    if (forbidden_[f] || !axes_.of[f].empty()) return;
    for (const Candidate& candidate : Candidates(f)) {
      if (candidate.operand == from_results) continue;
      if (!IsFree(candidate.axes)) continue;
      axes_.of[f] = candidate.axes;
      if (!Fits(f)) {
        axes_.of[f].clear();
        continue;
      }
      axes_.role = l_.mesh.RoleOf(candidate.axes[0]);
      used_.insert(used_.end(), candidate.axes.begin(), candidate.axes.end());
      return;
    }
  }

  // Whether every dimension with the factor can be split that way.
  bool Fits(int f) const {
    const Axes& axes = axes_.of[f];
    const int64_t parts = l_.mesh.Parts(axes);
    bool fits = KeepsMultiples(l_.program, node_, rule_, f, parts);
    // No one can sum over an unknown number of devices.
    for (const std::vector<DimFactors>& dims : rule_.results) {
      fits = fits && (HasFactor(dims, f) || !l_.mesh.IsElastic(axes));
    }
    ForEachDim([&](ValueId value, const DimFactors& factors, size_t d, bool,
                   size_t) {
      const Dim& dim = l_.Type(value).shape[d];
      if (factors.size() == 1) return;
      if (rule_.ragged && factors.back() == f) {
        fits = fits && l_.HasShares(dim, axes);
      }
      if (rule_.ragged || parts == 1) return;
      if (factors[0] != f) {
        // Split along an inner factor, a product is not contiguous.
        fits = fits &&
               std::find(factors.begin(), factors.end(), f) == factors.end();
        return;
      }
      // A product: its part must be the product of the parts.
      Dim product(1);
      for (const int factor : factors) {
        const Dim size = SizeOf(factor);
        // Elastic parts are of any size.
        if (factor == f && size.is_static() &&
            (parts == kElastic || size.size() % parts != 0)) {
          fits = false;
        }
        product =
            product *
            (factor == f
                 ? LocalDim(size, {.axes = axes, .token_axes = {}}, l_.mesh)
                 : size);
      }
      fits = fits && product == LocalDim(dim, {.axes = axes, .token_axes = {}},
                                         l_.mesh);
    });
    return fits;
  }

  // Size of a factor that is a dimension of its own somewhere.
  Dim SizeOf(int f) const {
    Dim size(1);
    ForEachDim(
        [&](ValueId value, const DimFactors& factors, size_t d, bool, size_t) {
          if (factors.size() == 1 && factors[0] == f) {
            size = l_.Type(value).shape[d];
          }
        });
    return size;
  }

  const Lowering& l_;
  const Node& node_;
  const OpRule& rule_;
  Lowering::FactorAxes axes_;
  Axes used_;
  std::vector<char> forbidden_;
};

}  // namespace

Lowering::FactorAxes Lowering::ChooseAxes(const Node& node,
                                          const OpRule& rule) const {
  return AxisChoice(*this, node, rule).Run();
}

}  // namespace gshard
