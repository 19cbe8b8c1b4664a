// Operators that move or reduce data. Those that shift or crop a dimension are
// in window_rules.cc.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "services/graph/dim.h"
#include "services/sharding/reshape_groups.h"
#include "services/sharding/rules/standard_rules.h"

namespace gshard {
namespace {

int AddFactor(OpRule& rule, bool whole = false) {
  rule.factors.push_back({.whole = whole});
  return static_cast<int>(rule.factors.size()) - 1;
}

bool IsStatic(const Shape& shape, size_t begin, size_t end) {
  return std::all_of(shape.begin() + begin, shape.begin() + end,
                     [](const Dim& dim) { return dim.is_static(); });
}

// A dimension that equals several has their factors. If several become several
// others, the outermost ones are one factor, although their sizes differ: they
// have the same elements in order.
OpRule Reshape(const Program& program, const Node& node) {
  const Shape& from = program.type(node.inputs[0]).shape;
  const Shape& to = program.type(node.outputs[0]).shape;
  OpRule rule;
  rule.pass_through = true;
  rule.operands.resize(1);
  rule.results.resize(1);
  std::vector<DimFactors>& left = rule.operands[0];
  std::vector<DimFactors>& right = rule.results[0];
  for (size_t d = 0; d < from.size(); ++d) {
    left.push_back({AddFactor(rule, /*whole=*/true)});
  }
  for (size_t d = 0; d < to.size(); ++d) {
    right.push_back({AddFactor(rule, /*whole=*/true)});
  }
  for (const ReshapeGroup& group : ReshapeGroups(from, to)) {
    const bool one_to_many = group.from_end - group.from_begin == 1;
    if (one_to_many || group.to_end - group.to_begin == 1) {
      std::vector<DimFactors>& many = one_to_many ? right : left;
      std::vector<DimFactors>& one = one_to_many ? left : right;
      DimFactors all;
      const size_t begin = one_to_many ? group.to_begin : group.from_begin;
      const size_t end = one_to_many ? group.to_end : group.from_end;
      for (size_t d = begin; d < end; ++d) {
        all.push_back(AddFactor(rule));
        many[d] = {all.back()};
      }
      one[one_to_many ? group.from_begin : group.to_begin] = std::move(all);
    } else if (IsStatic(from, group.from_begin, group.from_end) &&
               IsStatic(to, group.to_begin, group.to_end)) {
      left[group.from_begin] = right[group.to_begin] = {AddFactor(rule)};
    }
  }
  return rule;
}

OpRule Transpose(const Program& program, const Node& node) {
  const std::string from = Letters(program, node.inputs[0]);
  std::string to;
  for (const int64_t d : IntsAttribute(node.attributes, "permutation")) {
    to += from[d];
  }
  OpRule rule = MakeRule(absl::StrCat(from, "->", to));
  rule.pass_through = true;
  return rule;
}

std::string WithoutDims(const std::string& letters,
                        const std::vector<int64_t>& dims) {
  std::string left;
  for (size_t d = 0; d < letters.size(); ++d) {
    if (std::find(dims.begin(), dims.end(), static_cast<int64_t>(d)) ==
        dims.end()) {
      left += letters[d];
    }
  }
  return left;
}

OpRule ReduceSum(const Program& program, const Node& node) {
  const std::string from = Letters(program, node.inputs[0]);
  return MakeRule(absl::StrCat(
      from, "->", WithoutDims(from, IntsAttribute(node.attributes, "dims"))));
}

OpRule ReduceMax(const Program& program, const Node& node) {
  OpRule rule = ReduceSum(program, node);
  rule.reduction = Reduction::kMax;
  rule.operand_rules = {{.identity = -std::numeric_limits<double>::infinity()}};
  return rule;
}

OpRule Broadcast(const Program& program, const Node& node) {
  const std::string to = Letters(program, node.outputs[0]);
  OpRule rule = MakeRule(absl::StrCat(
      WithoutDims(to, IntsAttribute(node.attributes, "dims")), "->", to));
  rule.pass_through = true;
  return rule;
}

}  // namespace

NamedRules ShapeRules() {
  return {{"reshape", Reshape},
          {"transpose", Transpose},
          {"reduce_sum", ReduceSum},
          {"reduce_max", ReduceMax},
          {"broadcast", Broadcast}};
}

}  // namespace gshard
