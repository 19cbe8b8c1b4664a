#include "services/model/step_sizes.h"

#include <string>

#include "services/base/status_macros.h"
#include "services/graph/op.h"

namespace gshard {
namespace {

constexpr int64_t kChoices = 2;     // experts per token
constexpr int64_t kPositions = 16;  // per cache page, as in routers

// The symbol that the attribute `name` introduces into the program, if any.
const std::string* FreshSymbol(const Node& node, absl::string_view name) {
  const auto found = node.attributes.find(name);
  if (found == node.attributes.end()) return nullptr;
  const auto* shape = std::get_if<Shape>(&found->second);
  if (shape == nullptr || shape->size() != 1) return nullptr;
  const Dim& dim = shape->front();
  return dim.coefficient() == 1 && dim.symbols().size() == 1 ? &dim.symbols()[0]
                                                             : nullptr;
}

}  // namespace

absl::StatusOr<SymbolSizes> SizesOfStep(const Program& program,
                                        const DeviceMesh& mesh,
                                        const StepSizes& step) {
  SymbolSizes sizes(mesh);
  sizes.Set("B", step.sentences);
  for (const char* length : {"Ls", "Lt"}) sizes.Set(length, step.positions);
  // Decoding: a row is a hypothesis, with T pages of its own; its sentence has
  // those of the source. A cache has S pages of P positions.
  const int64_t rows = SaturatingMultiply(step.sentences, step.hypotheses);
  const int64_t pages = (step.positions + kPositions - 1) / kPositions;
  sizes.Set("R", rows);
  sizes.Set("T", pages);
  sizes.Set("Ts", pages);
  sizes.Set("P", kPositions);
  sizes.Set(
      "S", SaturatingMultiply(
               SaturatingMultiply(step.sentences, step.hypotheses + 1), pages));
  for (const Node& node : program.nodes) {
    const bool is_gate = node.op->name == "top2_gating";
    if (!is_gate && node.op->name != "plan_dispatch") continue;
    // Operand 0 has a row per token.
    ASSIGN_OR_RETURN(const int64_t tokens,
                     sizes.SizeOf(program.type(node.inputs[0]).shape[0]));
    if (const std::string* rows = FreshSymbol(node, "rows")) {
      sizes.Set(*rows, SaturatingMultiply(kChoices, tokens));
    }
    if (const std::string* groups = FreshSymbol(node, "groups")) {
      const int64_t size = IntAttribute(node.attributes, "group_size");
      sizes.Set(*groups, size == 0 ? 1 : tokens / size + (tokens % size != 0));
    }
  }
  return sizes;
}

}  // namespace gshard
