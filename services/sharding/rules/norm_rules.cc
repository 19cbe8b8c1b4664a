// softmax, rms_norm, layer_norm and their gradients. Statistics over a split
// last dimension: see lowering/softmax_lowering.cc and norm_lowering.cc.

#include "services/sharding/rules/standard_rules.h"

namespace gshard {
namespace {

// `text`, where # stands for the letters of all dimensions but the last of
// operand 0, z for the last, and Z for one that stays whole if it is symbolic:
// a mean needs its size.
RuleFunction OverLast(const std::string& text) {
  return [text](const Program& program, const Node& node) {
    std::string leading = Letters(program, node.inputs[0]);
    leading.pop_back();
    const bool symbol = !program.type(node.inputs[0]).shape.back().is_static();
    std::string letters;
    for (const char c : text) {
      if (c == '#') {
        letters += leading;
      } else {
        letters += c == 'Z' && !symbol ? 'z' : c;
      }
    }
    return MakeRule(letters);
  };
}

}  // namespace

NamedRules NormRules() {
  return {{"softmax", OverLast("#z->#z")},
          {"softmax_gradient", OverLast("#z,#z->#z")},
          {"rms_norm", OverLast("#Z,Z->#Z,#")},
          {"rms_norm_gradient", OverLast("#Z,Z,#,#Z->#Z,Z")},
          {"layer_norm", OverLast("#Z,Z,Z->#Z,#,#")},
          {"layer_norm_gradient", OverLast("#Z,Z,#,#,#Z->#Z,Z,Z")}};
}

}  // namespace gshard
