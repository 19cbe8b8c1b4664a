// rms_norm, layer_norm and their gradients over a split last dimension: row
// sums are reduced over the devices, the rows stay where they are.

#include "services/base/status_macros.h"
#include "services/partition/lowering/row_statistics.h"
#include "services/partition/lowering/standard_lowerings.h"

namespace gshard {
namespace {

// One node over rows of M elements.
class Norm {
 public:
  Norm(Lowering& l, const Node& node) : l_(l), node_(node), rows_(l, node) {
    // By the rules, rows of symbolic size are not split.
    const Dim& size = l.Type(node.inputs[0]).shape.back();
    if (size.is_static() && size.size() > 0) mean_factor_ = 1.0 / size.size();
  }

  bool ByRule() const { return !rows_.IsSplit(); }
  LoweredValues LowerByRule() {
    return l_.LowerByRule(node_, rows_.rule(), rows_.axes());
  }

  LoweredValues RmsNorm() {
    ASSIGN_OR_RETURN(const ValueId x, rows_.Operand(0));
    ASSIGN_OR_RETURN(const ValueId scale, rows_.Operand(1));
    const ValueId inverse = InverseRoot(rows_.Sum(Multiply(x, x)));
    return Results(
        {Multiply(Multiply(x, rows_.Spread(inverse)), scale), inverse});
  }

  // dx = dy scale r - x r^3 mean(dy scale x), with r = inverse_rms.
  LoweredValues RmsNormGradient() {
    ASSIGN_OR_RETURN(const ValueId x, rows_.Operand(0));
    ASSIGN_OR_RETURN(const ValueId scale, rows_.Operand(1));
    ASSIGN_OR_RETURN(const ValueId inverse, rows_.Operand(2));
    ASSIGN_OR_RETURN(const ValueId dy, rows_.Operand(3));
    const ValueId spread = rows_.Spread(inverse);
    const ValueId product = Multiply(dy, x);
    const ValueId dscale = rows_.SumOfRows(Multiply(product, spread));
    const ValueId cubed = Multiply(Multiply(inverse, inverse), inverse);
    const ValueId factor =
        Multiply(Mean(rows_.Sum(Multiply(product, scale))), cubed);
    return Results({Subtract(Multiply(Multiply(dy, scale), spread),
                             Multiply(x, rows_.Spread(factor))),
                    dscale});
  }

  LoweredValues LayerNorm() {
    ASSIGN_OR_RETURN(const ValueId x, rows_.Operand(0));
    ASSIGN_OR_RETURN(const ValueId scale, rows_.Operand(1));
    ASSIGN_OR_RETURN(const ValueId bias, rows_.Operand(2));
    const ValueId mean = Mean(rows_.Sum(x));
    const ValueId centred = rows_.Mask(Subtract(x, rows_.Spread(mean)));
    const ValueId inverse = InverseRoot(rows_.Sum(Multiply(centred, centred)));
    const ValueId normalised = Multiply(centred, rows_.Spread(inverse));
    return Results(
        {l_.AddOne("add", {Multiply(normalised, scale), bias}), mean, inverse});
  }

  // With n the normalised x and g = dy scale:
  // dx = inverse_std (g - mean(g) - n mean(g n)).
  LoweredValues LayerNormGradient() {
    ASSIGN_OR_RETURN(const ValueId x, rows_.Operand(0));
    ASSIGN_OR_RETURN(const ValueId scale, rows_.Operand(1));
    ASSIGN_OR_RETURN(const ValueId mean, rows_.Operand(2));
    ASSIGN_OR_RETURN(const ValueId inverse, rows_.Operand(3));
    ASSIGN_OR_RETURN(const ValueId dy, rows_.Operand(4));
    const ValueId spread = rows_.Spread(inverse);
    const ValueId normalised =
        Multiply(Subtract(x, rows_.Spread(mean)), spread);
    const ValueId g = Multiply(dy, scale);
    const ValueId mean_g = Mean(rows_.Sum(g));
    const ValueId mean_dot = Mean(rows_.Sum(Multiply(g, normalised)));
    const ValueId rest = Subtract(Subtract(g, rows_.Spread(mean_g)),
                                  Multiply(normalised, rows_.Spread(mean_dot)));
    return Results({Multiply(spread, rest),
                    rows_.SumOfRows(Multiply(dy, normalised)),
                    rows_.SumOfRows(dy)});
  }

 private:
  ValueId Multiply(ValueId a, ValueId b) {
    return l_.AddOne("multiply", {a, b});
  }
  ValueId Subtract(ValueId a, ValueId b) {
    return l_.AddOne("subtract", {a, b});
  }
  ValueId Mean(ValueId sum) {
    return l_.AddOne("scale", {sum}, {{"factor", mean_factor_}});
  }
  // 1 / sqrt(mean + epsilon).
  ValueId InverseRoot(ValueId sum) {
    return l_.AddOne(
        "inverse_root", {sum},
        {{"factor", mean_factor_},
         {"epsilon", FloatAttribute(node_.attributes, "epsilon")}});
  }
  std::vector<LocalValue> Results(const std::vector<ValueId>& values) const {
    std::vector<LocalValue> results;
    for (size_t i = 0; i < values.size(); ++i) {
      results.push_back(rows_.Result(i, values[i]));
    }
    return results;
  }

  Lowering& l_;
  const Node& node_;
  RowStatistics rows_;
  double mean_factor_ = 0.0;
};

void Register(const char* op, LoweredValues (Norm::*lower)()) {
  RegisterLowering(op, [lower](Lowering& l, const Node& node) -> LoweredValues {
    Norm norm(l, node);
    return norm.ByRule() ? norm.LowerByRule() : (norm.*lower)();
  });
}

}  // namespace

void RegisterNormLowerings() {
  Register("rms_norm", &Norm::RmsNorm);
  Register("rms_norm_gradient", &Norm::RmsNormGradient);
  Register("layer_norm", &Norm::LayerNorm);
  Register("layer_norm_gradient", &Norm::LayerNormGradient);
}

}  // namespace gshard
