#include "services/graph/program.h"

#include "services/base/check.h"
#include "services/graph/op.h"

namespace gshard {
namespace {

template <typename T>
const T& Get(const Attributes& attributes, absl::string_view name) {
  const auto found = attributes.find(name);
  CHECK(found != attributes.end());
  const T* value = std::get_if<T>(&found->second);
  CHECK(value != nullptr);
  return *value;
}

}  // namespace

std::vector<const Node*> Program::NodesOf(absl::string_view op) const {
  std::vector<const Node*> found;
  for (const Node& node : nodes) {
    if (node.op->name == op) found.push_back(&node);
  }
  return found;
}

int64_t IntAttribute(const Attributes& attributes, absl::string_view name) {
  return Get<int64_t>(attributes, name);
}
double FloatAttribute(const Attributes& attributes, absl::string_view name) {
  return Get<double>(attributes, name);
}
const std::string& StringAttribute(const Attributes& attributes,
                                   absl::string_view name) {
  return Get<std::string>(attributes, name);
}
const std::vector<int64_t>& IntsAttribute(const Attributes& attributes,
                                          absl::string_view name) {
  return Get<std::vector<int64_t>>(attributes, name);
}
const Shape& ShapeAttribute(const Attributes& attributes,
                            absl::string_view name) {
  return Get<Shape>(attributes, name);
}

Program Pruned(const Program& program, std::vector<ValueId>* new_ids) {
  std::vector<bool> needed(program.values.size(), false);
  for (const auto& [name, value] : program.outputs) needed[value] = true;
  std::vector<bool> kept(program.nodes.size(), false);
  for (size_t n = program.nodes.size(); n-- > 0;) {
    const Node& node = program.nodes[n];
    for (const ValueId output : node.outputs) {
      if (needed[output]) kept[n] = true;
    }
    if (!kept[n]) continue;
    for (const ValueId input : node.inputs) needed[input] = true;
  }

  Program pruned;
  pruned.name = program.name;
  std::vector<ValueId> renamed(program.values.size(), kNoValue);
  for (size_t n = 0; n < program.nodes.size(); ++n) {
    if (!kept[n]) continue;
    Node node = program.nodes[n];
    for (ValueId& input : node.inputs) input = renamed[input];
    for (ValueId& output : node.outputs) {
      renamed[output] = static_cast<ValueId>(pruned.values.size());
      pruned.values.push_back(program.values[output]);
      pruned.values.back().producer = static_cast<int32_t>(pruned.nodes.size());
      output = renamed[output];
    }
    pruned.nodes.push_back(std::move(node));
  }
  for (const auto& [name, value] : program.outputs) {
    pruned.outputs.emplace_back(name, renamed[value]);
  }
  if (new_ids != nullptr) *new_ids = std::move(renamed);
  return pruned;
}

}  // namespace gshard
