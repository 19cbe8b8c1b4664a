// Chains of operators, for propagation and resharding; manual regions.

#include "services/sharding/annotation.h"
#include "services/sharding/manual.h"
#include "tests/services/partition/random/random_case.h"
#include "tests/testing/builder_ops.h"

namespace gshard {
namespace {

ValueId Step(CaseWriter& c, ValueId x) {
  const Shape shape = c.b.type(x).shape;
  const int64_t rank = shape.size();
  switch (c.Below(12)) {
    case 0:
      return c.b.Relu(x);
    case 1:
      return c.b.Add(x, c.Float(shape));
    case 2:
      return c.b.Multiply(x, c.Float({shape.back()}));
    case 3:
      return c.b.Transpose(x, c.Permutation(rank));
    case 4: {
      const ValueId w = c.Float({shape.back(), c.StaticSize()}, 0.5f);
      return rank == 1   ? c.b.Einsum("a,ab->b", x, w)
             : rank == 2 ? c.b.Einsum("ca,ab->cb", x, w)
                         : c.b.Einsum("dca,ab->dcb", x, w);
    }
    case 5:
      return shape.back() == Dim(0) ? x : Softmax(c.b, x);
    case 6:
      return rank == 1 ? x : c.b.ReduceSum(x, {c.Below(rank)});
    case 7: {
      if (rank == 3) return x;
      Shape wider = shape;
      const int64_t d = c.Between(0, rank);
      wider.insert(wider.begin() + d, c.Size());
      c.BindSymbols({wider[d]});
      return c.b.AddOne("broadcast", {x},
                        {{"shape", wider}, {"dims", std::vector<int64_t>{d}}});
    }
    case 8: {
      // Joins two dimensions.
      if (rank == 1) return c.b.Reshape(x, {1, shape[0]});
      Shape joined(shape.begin() + 1, shape.end());
      joined[0] = shape[0] * shape[1];
      // A size determines neither B of 0 * B nor two symbols.
      if (joined[0].coefficient() == 0 || joined[0].symbols().size() > 1) {
        return x;
      }
      return c.b.Reshape(x, joined);
    }
    case 9: {
      const int64_t d = c.Below(rank);
      if (!shape[d].is_static() || shape[d].size() > 9) return x;
      return Concat(c.b, {x, x}, d);
    }
    case 10: {
      const int64_t d = c.Below(rank);
      if (!shape[d].is_static() || shape[d].size() < 3) return x;
      return c.b.Slice(x, d, 1, shape[d].size() - 1);
    }
    default:
      return c.b.Scale(x, 0.7);
  }
}

void Chain(CaseWriter& c) {
  ValueId x = c.Float(c.RandomShape(1, 3));
  const ValueId first = x;
  for (int64_t steps = c.Between(3, 6); steps-- > 0;) {
    x = Step(c, x);
    if (c.Chance(0.25)) x = c.Annotated(x);
  }
  c.Result(x);
  // Uses an intermediate value twice.
  if (c.Chance(0.3)) c.Result(c.b.Multiply(first, first));
}

// Sums of matrix products along split dimensions.
void FeedForward(CaseWriter& c) {
  const Dim rows = c.Size(), width = c.StaticSize(), hidden = c.StaticSize();
  const ValueId x = c.Float({rows, width});
  const ValueId h = c.Annotated(
      c.b.Relu(c.b.Einsum("bm,mh->bh", x, c.Float({width, hidden}))));
  const ValueId y = c.b.Einsum("bh,hm->bm", h, c.Float({hidden, width}, 0.5f));
  c.Result(c.b.Add(x, y));
}

// A manual region that works row by row: each device holds its rows of x, and
// the whole weights.
void Manual(CaseWriter& c) {
  const DeviceMesh& mesh = c.manual_mesh();
  const int64_t axis = c.Below(c.mesh().num_axes());
  const int64_t parts = c.mesh().axis(axis).size;
  const bool has_weights = c.Chance(0.5);
  // With weights, rows divide evenly: the weights' gradient sums over rows, and
  // the region does not mask padding.
  const Dim rows = c.Chance(0.3) ? c.NewSymbol("B", 1)
                   : has_weights ? Dim(parts * c.Between(1, 3))
                                 : Dim(c.Between(1, 9));
  const Dim width = c.StaticSize();
  const Sharding by_row{.dims = {{{static_cast<int>(axis)}, {}}, {}},
                        .partial = {}};
  const Sharding whole = Sharding::Replicated(2);
  const ValueId x = c.Float({rows, width});
  ValueId y = EnterManual(c.b, x, by_row, mesh);
  if (has_weights) {
    const ValueId w = c.Float({width, width}, 0.5f);
    y = c.b.Einsum("bm,mh->bh", y, EnterManual(c.b, w, whole, mesh));
  }
  y = c.b.Multiply(c.b.Relu(y), y);
  y = LeaveManual(c.b, y, {rows, width}, by_row, mesh);
  if (c.Chance(0.5)) y = c.b.Scale(y, -1.5);
  c.Result(y);
}

}  // namespace

std::vector<Family> ChainFamilies() {
  return {{"chain", 1500, Chain},
          {"feed_forward", 400, FeedForward},
          {"manual", 300, Manual}};
}

}  // namespace gshard
