// Operators that cut and pad.

#include "tests/services/partition/random/random_case.h"
#include "tests/testing/builder_ops.h"

namespace gshard {
namespace {

// A random shape whose dimension `dim` is static.
Shape WithStatic(CaseWriter& c, int64_t& dim) {
  Shape shape = c.RandomShape(1, 3);
  dim = c.Below(shape.size());
  shape[dim] = c.Chance(0.3) ? c.mesh().NumDevices() * c.Between(1, 3)
                             : c.Between(1, 13);
  return shape;
}

void Slice(CaseWriter& c) {
  int64_t dim;
  const Shape shape = WithStatic(c, dim);
  const int64_t begin = c.Between(0, shape[dim].size());
  const int64_t end = c.Between(begin, shape[dim].size());
  c.Result(c.b.Slice(c.Float(shape), dim, begin, end));
}

void Concat(CaseWriter& c) {
  int64_t dim;
  Shape shape = WithStatic(c, dim);
  std::vector<ValueId> parts;
  for (int64_t i = c.Between(1, 3); i-- > 0;) {
    if (!parts.empty() && c.Chance(0.15)) {
      parts.push_back(parts[0]);
      continue;
    }
    parts.push_back(c.Float(shape));
    shape[dim] = c.StaticSize();
  }
  c.Result(Concat(c.b, std::move(parts), dim));
}

void Pad(CaseWriter& c) {
  const Shape shape = c.RandomShape(1, 3);
  std::vector<int64_t> low, high, interior;
  for (const Dim& dim : shape) {
    const bool padded = dim.is_static() && c.Chance(0.6);
    const int64_t size = dim.coefficient();
    low.push_back(padded ? c.Between(-std::min<int64_t>(size, 2), 4) : 0);
    high.push_back(
        padded ? c.Between(-std::min<int64_t>(size + low.back(), 2), 4) : 0);
    interior.push_back(padded && c.Chance(0.25) ? c.Between(1, 2) : 0);
  }
  c.Result(c.b.AddOne("pad", {c.Float(shape)},
                      {{"low", low},
                       {"high", high},
                       {"interior", interior},
                       {"value", c.Pick<double>({0.0, 0.0, 1.5})}}));
}

void MaskTail(CaseWriter& c) {
  const Shape shape = c.RandomShape(1, 3);
  const int64_t dim = c.Below(shape.size());
  const ValueId x = c.Float(shape);
  const ValueId limit = c.Index(c.Between(-1, c.ValueOf(shape[dim]) + 1));
  c.Result(
      c.b.AddOne("mask_tail", {x, limit}, {{"dim", dim}, {"value", -0.5}}));
}

void DynamicSlice(CaseWriter& c) {
  c.differentiable = false;
  const Shape shape = c.RandomShape(1, 3);
  const int64_t dim = c.Below(shape.size());
  const int64_t whole = c.ValueOf(shape[dim]);
  const int64_t size = c.Between(0, whole);
  const ValueId x = c.Float(shape);
  const ValueId start = c.Index(c.Between(0, whole - size));
  c.Result(
      c.b.AddOne("dynamic_slice", {x, start}, {{"dim", dim}, {"size", size}}));
}

}  // namespace

std::vector<Family> WindowFamilies() {
  return {{"slice", 400, Slice},
          {"concat", 400, Concat},
          {"pad", 500, Pad},
          {"mask_tail", 200, MaskTail},
          {"dynamic_slice", 200, DynamicSlice}};
}

}  // namespace gshard
