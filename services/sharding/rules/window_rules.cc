// Operators that crop, shift or slide over a dimension. Its size changes, but
// it is one factor all the same: splitting an image splits the result. The
// lowerings of these operators move the elements that are then on the wrong
// devices (lowering/halo_nodes.h); the rule alone suffices only if such
// dimensions are not split.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "services/sharding/rules/standard_rules.h"

namespace gshard {
namespace {

int AddWhole(OpRule& rule) {
  rule.factors.push_back({.whole = true});
  return static_cast<int>(rule.factors.size()) - 1;
}

// Operand 0 and the result have the same dimensions; the others are scalars.
OpRule AlongAll(const Program& program, const Node& node) {
  const std::string letters = Letters(program, node.outputs[0]);
  std::string text = letters;
  for (size_t i = 1; i < node.inputs.size(); ++i) text += ",";
  OpRule rule = MakeRule(absl::StrCat(text, "->", letters));
  rule.pass_through = true;
  return rule;
}

// Whether parts of dimensions of these sizes correspond: a small piece of a
// large dimension is on few devices in any case.
bool AreAlike(const Dim& a, const Dim& b) {
  return a == b ||
         (a.is_static() && b.is_static() &&
          2 * std::min(a.size(), b.size()) >= std::max(a.size(), b.size()));
}

// The attribute `dim` is one factor for operands of a similar size to the
// result, whole if there are none.
OpRule AlongOne(const Program& program, const Node& node) {
  const std::string letters = Letters(program, node.outputs[0]);
  const int64_t dim = IntAttribute(node.attributes, "dim");
  const Dim& size = program.type(node.outputs[0]).shape[dim];
  std::string text = letters;
  for (size_t i = 1; i < node.inputs.size(); ++i) {
    absl::StrAppend(&text, ",", letters);
  }
  OpRule rule = MakeRule(absl::StrCat(text, "->", letters));
  rule.pass_through = true;
  bool alike = true;
  for (const ValueId input : node.inputs) {
    alike = alike && AreAlike(program.type(input).shape[dim], size);
  }
  if (alike) return rule;
  rule.results[0][dim] = {AddWhole(rule)};
  for (std::vector<DimFactors>& dims : rule.operands) {
    dims[dim] = {AddWhole(rule)};
  }
  return rule;
}

// Each operand is shorter than the result by nature.
OpRule Concat(const Program& program, const Node& node) {
  const std::string letters = Letters(program, node.outputs[0]);
  std::string text = letters;
  for (size_t i = 1; i < node.inputs.size(); ++i) {
    absl::StrAppend(&text, ",", letters);
  }
  OpRule rule = MakeRule(absl::StrCat(text, "->", letters));
  rule.pass_through = true;
  return rule;
}

// The start is known only at run time.
OpRule DynamicSlice(const Program& program, const Node& node) {
  OpRule rule = AlongAll(program, node);
  const int64_t dim = IntAttribute(node.attributes, "dim");
  rule.operands[0][dim] = {AddWhole(rule)};
  rule.results[0][dim] = {AddWhole(rule)};
  return rule;
}

// x, y, dy -> dx.
OpRule ReduceMaxGradient(const Program& program, const Node& node) {
  const std::string from = Letters(program, node.inputs[0]);
  const std::vector<int64_t>& dims = IntsAttribute(node.attributes, "dims");
  std::string reduced;
  for (size_t d = 0; d < from.size(); ++d) {
    if (std::count(dims.begin(), dims.end(), static_cast<int64_t>(d)) == 0) {
      reduced += from[d];
    }
  }
  return MakeRule(absl::StrCat(from, ",", reduced, ",", reduced, "->", from));
}

bool IsTwoDimensional(const Program& program, const Node& node) {
  return program.type(node.inputs[0]).shape.size() == 4;
}

OpRule Convolution(const Program& program, const Node& node) {
  return MakeRule(IsTwoDimensional(program, node) ? "bxyi,KLio->bxyo"
                                                  : "bxi,Kio->bxo");
}

OpRule ConvolutionKernelGradient(const Program& program, const Node& node) {
  return MakeRule(IsTwoDimensional(program, node) ? "bxyi,bxyo->KLio"
                                                  : "bxi,bxo->Kio");
}

}  // namespace

NamedRules WindowRules() {
  return {{"pad", AlongAll},
          {"mask_tail", AlongAll},
          {"reverse", AlongAll},
          {"dynamic_slice", DynamicSlice},
          {"slice", AlongOne},
          {"slice_gradient", AlongOne},
          {"concat", Concat},
          {"reduce_max_gradient", ReduceMaxGradient},
          {"convolution", Convolution},
          {"convolution_kernel_gradient", ConvolutionKernelGradient}};
}

}  // namespace gshard
