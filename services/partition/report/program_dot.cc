#include "services/partition/report/program_dot.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/graph/op.h"
#include "services/partition/ops/collective_ops.h"

namespace gshard {
namespace {

// Light enough for black text; further roles reuse them.
constexpr const char* kColours[] = {"#cfe2f3", "#fce5cd", "#d9ead3",
                                    "#ead1dc", "#fff2cc", "#d9d2e9"};

// Text between quotes, where "\n" stays a line break.
std::string Escaped(absl::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '"' || c == '\\') escaped.push_back('\\');
    if (c == '\n') {
      escaped += "\\n";
    } else {
      escaped.push_back(c);
    }
  }
  return escaped;
}

class Picture {
 public:
  Picture(const Partitioned& partitioned, const DeviceMesh& mesh,
          const NodeRange& range)
      : partitioned_(partitioned),
        program_(partitioned.program),
        mesh_(mesh),
        range_(range) {}

  std::string Draw() {
    text_ = absl::StrCat("digraph \"", Escaped(program_.name),
                         "\" {\n"
                         "  rankdir=TB;\n"
                         "  node [fontname=\"sans-serif\", style=filled];\n"
                         "  edge [fontname=\"monospace\", fontsize=10];\n");
    DrawLegend();
    for (int32_t n = range_.first; n <= range_.last; ++n) {
      DrawNode(n, /*outside=*/false);
    }
    std::set<int32_t> outside;
    for (int32_t n = range_.first; n <= range_.last; ++n) {
      for (const ValueId input : program_.nodes[n].inputs) {
        const int32_t from = program_.values[input].producer;
        if (!Holds(from) && outside.insert(from).second) {
          DrawNode(from, /*outside=*/true);
        }
        DrawEdge(input, absl::StrCat("n", n));
      }
    }
    DrawResults();
    return absl::StrCat(text_, "}\n");
  }

 private:
  bool Holds(int32_t node) const {
    return node >= range_.first && node <= range_.last;
  }

  const char* ColourOf(int role) const {
    return kColours[role % std::size(kColours)];
  }

  void DrawLegend() {
    for (size_t role = 0; role < mesh_.roles().size(); ++role) {
      std::string axes;
      for (const int a : mesh_.AxesOfRole(role)) {
        const int64_t size = mesh_.axis(a).size;
        absl::StrAppend(&axes, axes.empty() ? "" : ", ", mesh_.axis(a).name,
                        " ",
                        size == kElastic ? "elastic" : std::to_string(size));
      }
      const std::string& name = mesh_.roles()[role];
      absl::StrAppend(&text_, "  role", role, " [shape=plaintext, label=\"",
                      Escaped(name.empty() ? "devices" : name), ": ",
                      Escaped(axes), "\", fillcolor=\"", ColourOf(role),
                      "\"];\n");
    }
  }

  // The name of a parameter or input, an einsum's equation.
  std::string LabelOf(const Node& node) const {
    std::string label = node.op->name;
    for (const char* name : {"name", "equation", "axes"}) {
      const auto found = node.attributes.find(name);
      if (found == node.attributes.end()) continue;
      if (const auto* text = std::get_if<std::string>(&found->second)) {
        absl::StrAppend(&label, "\n", *text);
      }
    }
    return label;
  }

  void DrawNode(int32_t n, bool outside) {
    const Node& node = program_.nodes[n];
    const std::string& op = node.op->name;
    const char* shape = "box";
    if (IsCollective(op) || IsCrossing(op)) {
      shape = "hexagon";
    } else if (node.op->kernel == nullptr) {
      shape = "ellipse";
    }
    absl::StrAppend(&text_, "  n", n, " [label=\"", Escaped(LabelOf(node)),
                    "\", shape=", shape, ", fillcolor=\"",
                    ColourOf(partitioned_.roles[node.outputs[0]]), "\"",
                    outside ? ", style=\"filled,dashed\"" : "", "];\n");
  }

  void DrawEdge(ValueId value, const std::string& to) {
    std::string label =
        absl::StrCat("%", value, " ", program_.type(value).ToString());
    if (partitioned_.wholes[value] != kNoValue) {
      absl::StrAppend(&label, "\n",
                      partitioned_.shardings[value].ToString(mesh_));
    }
    absl::StrAppend(&text_, "  n", program_.values[value].producer, " -> ", to,
                    " [label=\"", Escaped(label), "\"];\n");
  }

  // Draws the results of the part: values that later nodes or outputs need and
  // nothing in it reads, except values saved for the backward pass.
  void DrawResults() {
    std::set<ValueId> leaving, read;
    for (int32_t n = range_.first; n <= range_.last; ++n) {
      const std::vector<ValueId>& inputs = program_.nodes[n].inputs;
      read.insert(inputs.begin(), inputs.end());
    }
    const auto note = [&](ValueId value) {
      if (Holds(program_.values[value].producer) && read.count(value) == 0) {
        leaving.insert(value);
      }
    };
    for (size_t n = range_.last + 1; n < program_.nodes.size(); ++n) {
      for (const ValueId input : program_.nodes[n].inputs) note(input);
    }
    for (const auto& [name, value] : program_.outputs) note(value);
    for (const ValueId value : leaving) {
      absl::StrAppend(&text_, "  out", value, " [shape=point];\n");
      DrawEdge(value, absl::StrCat("out", value));
    }
  }

  const Partitioned& partitioned_;
  const Program& program_;
  const DeviceMesh& mesh_;
  const NodeRange range_;
  std::string text_;
};

}  // namespace

absl::StatusOr<NodeRange> FirstMoeLayer(const Program& program) {
  const auto is_op = [](absl::string_view op) {
    return [op](const Node& node) { return node.op->name == op; };
  };
  const auto begin = program.nodes.begin(), end = program.nodes.end();
  const auto gate = std::find_if(begin, end, is_op("top2_gating"));
  const auto combine = std::find_if(gate, end, is_op("combine"));
  if (combine == end) {
    return absl::NotFoundError(
        absl::StrCat("program '", program.name, "' has no MoE layer"));
  }
  return NodeRange{.first = static_cast<int32_t>(gate - begin),
                   .last = static_cast<int32_t>(combine - begin)};
}

std::string ProgramToDot(const Partitioned& partitioned, const DeviceMesh& mesh,
                         const NodeRange& range) {
  CHECK(range.first >= 0 && range.first <= range.last &&
        range.last < static_cast<int32_t>(partitioned.program.nodes.size()));
  return Picture(partitioned, mesh, range).Draw();
}

}  // namespace gshard
