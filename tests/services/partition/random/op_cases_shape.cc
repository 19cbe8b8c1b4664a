// Operators that move or reduce data.

#include <algorithm>

#include "tests/services/partition/random/random_case.h"

namespace gshard {
namespace {

void ReduceSum(CaseWriter& c) {
  const ValueId x = c.Float(c.RandomShape(1, 4));
  c.Result(c.b.ReduceSum(x, c.Subset(c.b.type(x).shape.size())));
}

void ReduceMax(CaseWriter& c) {
  const ValueId x = c.Float(c.RandomShape(1, 4));
  c.Result(c.b.ReduceMax(x, c.Subset(c.b.type(x).shape.size())));
}

void Broadcast(CaseWriter& c) {
  const Shape shape = c.RandomShape(1, 4);
  c.BindSymbols(shape);
  const std::vector<int64_t> dims = c.Subset(shape.size());
  Shape from;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (std::count(dims.begin(), dims.end(), d) == 0) from.push_back(shape[d]);
  }
  c.Result(c.b.AddOne("broadcast", {c.Float(from)},
                      {{"shape", shape}, {"dims", dims}}));
}

void Transpose(CaseWriter& c) {
  const Shape shape = c.RandomShape(1, 4);
  c.Result(c.b.Transpose(c.Float(shape), c.Permutation(shape.size())));
}

// Random factors grouped into dimensions in two ways: merges, splits and both.
void Reshape(CaseWriter& c) {
  std::vector<Dim> factors;
  for (int64_t i = c.Between(1, 5); i-- > 0;) {
    factors.push_back(c.Chance(0.4)
                          ? Dim(c.mesh().NumDevices())
                          : Dim(c.Pick<int64_t>({1, 2, 2, 3, 4, 5, 7})));
  }
  // At most one symbol, since a size cannot determine two, and zeros only
  // without a symbol.
  if (c.Chance(0.3)) {
    factors[c.Below(factors.size())] = c.NewSymbol("B", 1);
  } else if (c.Chance(0.03)) {
    factors[c.Below(factors.size())] = 0;
  }
  const auto grouped = [&] {
    Shape shape = {factors[0]};
    for (size_t i = 1; i < factors.size(); ++i) {
      if (c.Chance(0.5)) {
        shape.back() = shape.back() * factors[i];
      } else {
        shape.push_back(factors[i]);
      }
    }
    if (c.Chance(0.1)) shape.insert(shape.begin() + c.Below(shape.size()), 1);
    return shape;
  };
  const ValueId x = c.Float(grouped());
  c.Result(c.b.Reshape(x, grouped()));
}

void Reverse(CaseWriter& c) {
  const ValueId x = c.Float(c.RandomShape(1, 3));
  c.Result(c.b.Reverse(x, c.Subset(c.b.type(x).shape.size())));
}

}  // namespace

std::vector<Family> ShapeFamilies() {
  return {{"reduce_sum", 300, ReduceSum}, {"reduce_max", 300, ReduceMax},
          {"broadcast", 300, Broadcast},  {"transpose", 300, Transpose},
          {"reshape", 800, Reshape},      {"reverse", 200, Reverse}};
}

}  // namespace gshard
