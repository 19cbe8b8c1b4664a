// Elementwise operators and dropout.

#include "tests/services/partition/random/random_case.h"
#include "tests/testing/builder_ops.h"

namespace gshard {
namespace {

// The shape, or its trailing dimensions.
Shape Trailing(CaseWriter& c, const Shape& shape) {
  const int64_t dropped = c.Chance(0.5) ? 0 : c.Between(0, shape.size());
  return Shape(shape.begin() + dropped, shape.end());
}

void Binary(CaseWriter& c) {
  const Shape shape = c.RandomShape(0, 4);
  const std::string op = c.Pick<std::string>(
      {"add", "subtract", "multiply", "divide", "multiply"});
  const ValueId a = c.Float(shape);
  if (c.Chance(0.1))
    return c.Result(c.b.AddOne(op == "divide" ? "add" : op, {a, a}));
  const Shape trailing = Trailing(c, shape);
  const ValueId b = op == "divide" ? c.Positive(trailing) : c.Float(trailing);
  c.Result(c.b.AddOne(op, {a, b}));
}

void Unary(CaseWriter& c) {
  const ValueId x = c.Float(c.RandomShape(0, 4));
  switch (c.Below(3)) {
    case 0:
      return c.Result(Exp(c.b, x));
    case 1:
      return c.Result(c.b.Relu(x));
    default:
      return c.Result(c.b.Scale(x, -0.3));
  }
}

void Constant(CaseWriter& c) {
  const Shape shape = c.RandomShape(0, 3);
  const ValueId x = c.Float(shape);
  const ValueId constant = c.Annotated(c.b.Constant(1.5, Trailing(c, shape)));
  c.Result(c.b.Multiply(x, constant));
}

void Dropout(CaseWriter& c) {
  const ValueId x = c.Float(c.RandomShape(1, 4));
  c.Result(c.b.Dropout(x, c.Key(), 0.4, c.Below(5)));
}

// Casts to bfloat16 and, perhaps after another operator, back: parts give the
// same bits.
void Cast(CaseWriter& c) {
  ValueId x = c.Float(c.RandomShape(0, 4));
  x = c.Annotated(c.b.Cast(x, ElementType::kBFloat16));
  if (c.Chance(0.5)) x = c.Annotated(c.b.Relu(x));
  if (c.Chance(0.3)) c.Result(x);
  c.Result(c.b.Cast(x, ElementType::kFloat32));
}

}  // namespace

std::vector<Family> ElementwiseFamilies() {
  return {{"binary", 1000, Binary},
          {"unary", 400, Unary},
          {"constant", 200, Constant},
          {"dropout", 300, Dropout},
          {"cast", 300, Cast}};
}

}  // namespace gshard
