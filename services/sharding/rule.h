// Sharding rules: how the dimensions of an operator's operands and results
// hang together.
//
// A rule maps every dimension to factors, as an einsum maps them to letters:
//
//   einsum "blm,mh->blh"   operands [b l m] [m h]   results [b l h]
//   reshape [B, L, M] -> [B*L, M]   [b l m] -> [bl m]
//
// Dimensions of one factor are split alike. A factor that an operand lacks is
// copied along it; one that a result lacks is summed away, so a result whose
// missing factor is split is partial. A dimension of several factors is split
// along the major one. Rows of a ragged batch have the factors expert and
// token (sharding.h).
//
// From its rule alone an operator is propagated through and partitioned. One
// for which the local operator on local operands is not all there is to it
// brings its own lowering (partitioner.h). An operator without a rule is
// computed whole on every device.

#ifndef SERVICES_SHARDING_RULE_H_
#define SERVICES_SHARDING_RULE_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/collectives/collectives.h"
#include "services/graph/program.h"

namespace gshard {

struct Factor {
  // Must not be split: the operator needs the dimension in one piece.
  bool whole = false;
  // Parts must be multiples of this: a group of tokens is not cut.
  int64_t multiple = 1;
};

// Factors of one dimension, as indices, the major one first.
using DimFactors = std::vector<int>;

struct OperandRule {
  // What padding must hold where it could matter: in a factor that is summed
  // away, and, with `mask_always`, in any.
  double identity = 0.0;
  bool mask_always = false;
  // A factor that the operand lacks makes it partial rather than copied: the
  // operator wants the device's own share. So it is with group sizes, which
  // count the device's own rows. Nothing propagates into such an operand.
  bool own_share = false;
};

struct OpRule {
  std::vector<Factor> factors;
  // [operand][dimension] and [result][dimension].
  std::vector<std::vector<DimFactors>> operands;
  std::vector<std::vector<DimFactors>> results;
  // How a missing factor is summed away.
  Reduction reduction = Reduction::kSum;
  // Operands, one by one; may be shorter than `operands`.
  std::vector<OperandRule> operand_rules;
  // Dimensions of two factors are ragged rows, not products.
  bool ragged = false;
  // An element of the result comes from the same place of the operands, so rows
  // may lie in any order.
  bool elementwise = false;
  // Operators that cannot be wrong about their neighbours' shardings,
  // elementwise ones and those that move data, propagate first.
  bool pass_through = false;

  OperandRule operand_rule(size_t i) const {
    return i < operand_rules.size() ? operand_rules[i] : OperandRule();
  }
};

// Whether one of the dimensions has the factor.
bool HasFactor(const std::vector<DimFactors>& dims, int factor);

// Writes a rule as letters, one per dimension: operands, "->", results, each
// separated by commas. Capital letters are whole; "(et)" are ragged rows, by
// expert and by token. "" between commas is a scalar.
//
//   MakeRule("blm,mh->blh")     MakeRule("(et)m,emh,Z->(et)h")
//
// REQUIRES: the text is well formed.
OpRule MakeRule(absl::string_view letters);

// The rule of one node, which has the shapes and attributes.
using RuleFunction =
    std::function<OpRule(const Program& program, const Node& node)>;

// Adds the rule of an operator; adding one again does nothing. From any thread.
void RegisterRule(absl::string_view op, RuleFunction rule);

// An elementwise rule for a node whose first dimension are ragged rows, which
// `is_rows` says of a dimension: they may be cut by expert and by token.
OpRule WithRaggedRows(OpRule rule, const Program& program, const Node& node,
                      const std::function<bool(const Dim&)>& is_rows);

// The rule of a node: the registered one, or one whose dimensions are all
// whole. Rules of services/graph's operators are always there.
OpRule RuleOf(const Program& program, const Node& node);
bool HasRule(absl::string_view op);

// Whether the node's dimensions with the factor, as far as their sizes are
// known, can be cut in that many parts that are multiples of what the factor
// says.
bool KeepsMultiples(const Program& program, const Node& node,
                    const OpRule& rule, int factor, int64_t parts);

}  // namespace gshard

#endif  // SERVICES_SHARDING_RULE_H_
