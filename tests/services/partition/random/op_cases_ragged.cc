// Ragged rows, sorted by expert.

#include "services/sharding/annotation.h"
#include "tests/services/partition/random/random_case.h"

namespace gshard {
namespace {

struct Rows {
  Dim experts = 0;
  Dim count = 0;
  ValueId sizes = kNoValue;
};

// Experts with few rows each; some have none.
Rows RandomRows(CaseWriter& c) {
  const Dim experts =
      c.Chance(0.3) ? Dim(c.mesh().NumDevices()) : Dim(c.Between(1, 9));
  Tensor sizes(ElementType::kInt32, {experts.size()});
  int64_t total = 0;
  for (int32_t& size : sizes.span<int32_t>()) {
    size = static_cast<int32_t>(c.Chance(0.3) ? 0 : c.Below(4));
    total += size;
  }
  const Dim count = c.RowSymbol("R", total);
  const ValueId given = c.Given(std::move(sizes), {experts});
  c.NoteRows(count, given);
  return {experts, count, given};
}

// ragged_dot, ragged_bias_add, relu and ragged_dot: an expert's network.
void Experts(CaseWriter& c) {
  const Rows rows = RandomRows(c);
  const Dim width = c.StaticSize(), hidden = c.StaticSize();
  ValueId x = c.Float({rows.count, width});
  ValueId weights = c.Float({rows.experts, width, hidden});
  // Only the first product is bfloat16: after it, a sum in another order could
  // round to a neighbouring value.
  if (c.Chance(0.25)) {
    x = c.Annotated(c.b.Cast(x, ElementType::kBFloat16));
    weights = c.b.Cast(weights, ElementType::kBFloat16);
  }
  x = c.b.RaggedDot(x, weights, rows.sizes);
  if (c.Chance(0.5)) {
    x = c.b.RaggedBiasAdd(x, c.Float({rows.experts, hidden}), rows.sizes);
  }
  if (c.Chance(0.5)) {
    x = c.Annotated(c.b.Relu(x));
    x = c.b.RaggedDot(x, c.Float({rows.experts, hidden, width}), rows.sizes);
  }
  c.Result(x);
}

void DropoutRows(CaseWriter& c) {
  const Rows rows = RandomRows(c);
  const Dim width = c.StaticSize();
  ValueId x = c.Float({rows.count, width});
  x = c.b.RaggedBiasAdd(x, c.Float({rows.experts, width}), rows.sizes);
  const ValueId numbers = c.Ints({rows.count}, 0, 40);
  c.Result(c.b.AddOne("dropout_rows", {x, numbers, c.Key()},
                      {{"rate", 0.4}, {"salt", int64_t{3}}}));
}

}  // namespace

std::vector<Family> RaggedFamilies() {
  return {{"experts", 600, Experts}, {"dropout_rows", 200, DropoutRows}};
}

}  // namespace gshard
