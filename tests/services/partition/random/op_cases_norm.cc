// softmax and norms over the last dimension.

#include "tests/services/partition/random/random_case.h"
#include "tests/testing/builder_ops.h"

namespace gshard {
namespace {

// A shape whose last dimension is not empty.
Shape NormShape(CaseWriter& c) {
  Shape shape = c.RandomShape(1, 3);
  while (shape.back() == Dim(0)) shape.back() = c.Size();
  return shape;
}

void Softmax(CaseWriter& c) {
  c.Result(Softmax(c.b, c.Float(NormShape(c), 3.0f)));
}

void RmsNorm(CaseWriter& c) {
  const Shape shape = NormShape(c);
  const ValueId x = c.Float(shape);
  c.Result(c.b.RmsNorm(x, c.Float({shape.back()}), 1e-2));
}

void LayerNorm(CaseWriter& c) {
  const Shape shape = NormShape(c);
  const ValueId x = c.Float(shape);
  const ValueId scale = c.Float({shape.back()});
  const ValueId bias = c.Float({shape.back()});
  c.Result(c.b.AddNode("layer_norm", {x, scale, bias}, {{"epsilon", 1e-2}})[0]);
}

}  // namespace

std::vector<Family> NormFamilies() {
  return {{"softmax", 300, Softmax},
          {"rms_norm", 300, RmsNorm},
          {"layer_norm", 300, LayerNorm}};
}

}  // namespace gshard
