// Sharding rules: how the dimensions of an operator's operands and results
// correspond.
//
// A rule maps every dimension to factors, as an einsum maps them to letters:
//
//   einsum "blm,mh->blh"   operands [b l m] [m h]   results [b l h]
//   reshape [B, L, M] -> [B*L, M]   [b l m] -> [bl m]
//
// Dimensions of one factor are split alike. An operand without a factor is
// copied along it; a result without it is reduced over it, and so partial if
// the factor is split. A dimension of several factors is split along the major
// one. Rows of a ragged batch have the factors expert and token (sharding.h).
//
// The rule alone suffices to propagate through an operator and to partition it.
// An operator that takes more than the same operator on local operands has its
// own lowering (partitioner.h). An operator without a rule is computed whole on
// every device.

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
  // Must not be split: the operator needs the whole dimension.
  bool whole = false;
  // Parts must be multiples of this, so that no group of tokens is split.
  int64_t multiple = 1;
};

// Factors of one dimension, as indices, the major one first.
using DimFactors = std::vector<int>;

struct OperandRule {
  // The value that padding must have where it matters: in a factor that is
  // reduced, and, with `mask_always`, in any.
  double identity = 0.0;
  bool mask_always = false;
  // A factor that the operand lacks makes it partial rather than copied: the
  // operator takes the device's own share, like group sizes, which count the
  // device's own rows. Nothing propagates into such an operand.
  bool own_share = false;
};

struct OpRule {
  std::vector<Factor> factors;
  // [operand][dimension] and [result][dimension].
  std::vector<std::vector<DimFactors>> operands;
  std::vector<std::vector<DimFactors>> results;
  // How results are reduced over a missing factor.
  Reduction reduction = Reduction::kSum;
  // Per operand; may be shorter than `operands`.
  std::vector<OperandRule> operand_rules;
  // Dimensions of two factors are ragged rows, not products.
  bool ragged = false;
  // An element of the result depends on the same position of the operands, so
  // rows may have any order.
  bool elementwise = false;
  // Elementwise and data movement operators propagate first, since they
  // reliably share their neighbours' shardings.
  bool pass_through = false;

  OperandRule operand_rule(size_t i) const {
    return i < operand_rules.size() ? operand_rules[i] : OperandRule();
  }
};

// Whether one of the dimensions has the factor.
bool HasFactor(const std::vector<DimFactors>& dims, int factor);

// Makes a rule from letters, one per dimension: operands, "->", results, each
// separated by commas. Capital letters are whole; "(et)" are ragged rows, by
// expert and by token. An empty item is a scalar.
//
//   MakeRule("blm,mh->blh")     MakeRule("(et)m,emh,Z->(et)h")
//
// REQUIRES: the text is well formed.
OpRule MakeRule(absl::string_view letters);

// The rule of one node, given its shapes and attributes.
using RuleFunction =
    std::function<OpRule(const Program& program, const Node& node)>;

// Registers the rule of an operator; one that exists is kept. Thread-safe.
void RegisterRule(absl::string_view op, RuleFunction rule);

// An elementwise rule for a node whose first dimension is ragged rows
// (according to `is_rows`): they may be split by expert and by token.
OpRule WithRaggedRows(OpRule rule, const Program& program, const Node& node,
                      const std::function<bool(const Dim&)>& is_rows);

// The rule of a node: the registered one, or one whose dimensions are all
// whole. services/graph's operators always have rules.
OpRule RuleOf(const Program& program, const Node& node);

// Whether the node's dimensions with the factor, if of known size, can be split
// in that many parts that are multiples of factor.multiple; elastic parts may
// have any size.
bool KeepsMultiples(const Program& program, const Node& node,
                    const OpRule& rule, int factor, int64_t parts);

}  // namespace gshard

#endif  // SERVICES_SHARDING_RULE_H_
