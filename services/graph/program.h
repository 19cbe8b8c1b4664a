// Program: a model as a list of operators in execution order.
//
// Values are numbered; each is produced by one node and has an element type and
// a shape whose dimensions may be symbolic. The sources of values are the nodes
// "input" (fed per run), "parameter" (weights, by name) and "constant". A
// program is built with Builder (builder.h), printed and parsed by text.h,
// differentiated by gradient.h and run by executor.h.
//
// A Program is a value: copying it copies the lists. It never mentions
// processes or devices; `Value::sharding` is an annotation that
// services/sharding writes and reads, and does not change values.

#ifndef SERVICES_GRAPH_PROGRAM_H_
#define SERVICES_GRAPH_PROGRAM_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "services/graph/dim.h"

namespace gshard {

using ValueId = int32_t;
constexpr ValueId kNoValue = -1;

// A constant of a node.
using Attribute =
    std::variant<int64_t, double, std::string, std::vector<int64_t>, Shape>;
using Attributes = std::map<std::string, Attribute, std::less<>>;

struct OpDef;

struct Node {
  const OpDef* op = nullptr;  // never null; owned by the registry (op.h)
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  Attributes attributes;
};

struct Value {
  ValueType type;
  int32_t producer = -1;  // index of the node
  std::string sharding;   // "" or an annotation such as "split(0, expert)"
};

struct Program {
  std::string name;
  std::vector<Node> nodes;
  std::vector<Value> values;
  // Named results, in order.
  std::vector<std::pair<std::string, ValueId>> outputs;

  const ValueType& type(ValueId value) const { return values[value].type; }
  const Node& producer(ValueId value) const {
    return nodes[values[value].producer];
  }

  // Nodes whose op is `op`, e.g. "parameter", in order.
  std::vector<const Node*> NodesOf(absl::string_view op) const;
};

// Reads an attribute. REQUIRES: it exists with that type; operators verify
// their attributes when a node is added.
int64_t IntAttribute(const Attributes& attributes, absl::string_view name);
double FloatAttribute(const Attributes& attributes, absl::string_view name);
const std::string& StringAttribute(const Attributes& attributes,
                                   absl::string_view name);
const std::vector<int64_t>& IntsAttribute(const Attributes& attributes,
                                          absl::string_view name);
const Shape& ShapeAttribute(const Attributes& attributes,
                            absl::string_view name);

// Removes nodes that no output needs, including unused inputs and parameters.
// Fills `renamed`, if given, with each value's id in the result, or kNoValue.
Program Pruned(const Program& program, std::vector<ValueId>* renamed = nullptr);

}  // namespace gshard

#endif  // SERVICES_GRAPH_PROGRAM_H_
