#include "services/partition/report/node_place.h"

#include <algorithm>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "services/graph/op.h"

namespace gshard {
namespace {

// Whether a node's results reach an output other than a gradient.
std::vector<bool> ForwardNodes(const Program& program) {
  std::vector<bool> is_needed(program.values.size(), false);
  for (const auto& [name, value] : program.outputs) {
    if (!absl::StartsWith(name, kGradientPrefix)) is_needed[value] = true;
  }
  std::vector<bool> is_forward(program.nodes.size(), false);
  for (size_t n = program.nodes.size(); n-- > 0;) {
    const Node& node = program.nodes[n];
    is_forward[n] = std::any_of(node.outputs.begin(), node.outputs.end(),
                                [&](ValueId v) { return is_needed[v]; });
    if (!is_forward[n]) continue;
    for (const ValueId input : node.inputs) is_needed[input] = true;
  }
  return is_forward;
}

std::string Folder(const std::string& parameter) {
  return parameter.substr(0, parameter.rfind('.'));
}

constexpr int kNowhere = -1;

// The last place of operands from the forward pass; if there are none, the
// first of the others.
int PlaceOf(const Program& program, const Node& node,
            const std::vector<bool>& is_forward, const std::vector<int>& at) {
  int last = kNowhere, first = kNowhere;
  for (const ValueId input : node.inputs) {
    const int32_t producer = program.values[input].producer;
    const int from = at[producer];
    if (from == kNowhere) continue;
    if (is_forward[producer]) {
      last = std::max(last, from);
    } else if (first == kNowhere || from < first) {
      first = from;
    }
  }
  return last != kNowhere ? last : first;
}

}  // namespace

std::vector<NodePlace> PlacesOf(const Program& program) {
  std::vector<std::string> names;  // in the order of the program
  std::map<std::string, int> numbers;
  const std::vector<bool> is_forward = ForwardNodes(program);
  std::vector<int> at(program.nodes.size(), kNowhere);
  for (size_t n = 0; n < program.nodes.size(); ++n) {
    const Node& node = program.nodes[n];
    if (node.op->name == "parameter") {
      const std::string name = Folder(StringAttribute(node.attributes, "name"));
      const auto [entry, is_new] = numbers.emplace(name, names.size());
      if (is_new) names.push_back(name);
      at[n] = entry->second;
    }
    if (!node.inputs.empty()) at[n] = PlaceOf(program, node, is_forward, at);
  }
  std::vector<NodePlace> places;
  for (size_t n = 0; n < program.nodes.size(); ++n) {
    places.push_back({.name = at[n] == kNowhere ? "" : names[at[n]],
                      .backward = !is_forward[n]});
  }
  for (const auto& [name, value] : program.outputs) {
    absl::string_view parameter = name;
    if (absl::ConsumePrefix(&parameter, kGradientPrefix)) {
      places[program.values[value].producer].name = std::string(parameter);
    }
  }
  return places;
}

}  // namespace gshard
