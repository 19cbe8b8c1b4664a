// Lookups and the loss.

#include "tests/services/partition/random/random_case.h"

namespace gshard {
namespace {

void Embedding(CaseWriter& c) {
  const int64_t vocabulary = c.Between(1, 17);
  const ValueId table = c.Float({vocabulary, c.Size()});
  const ValueId ids = c.Ints(c.RandomShape(1, 3), 0, vocabulary - 1);
  c.Result(c.b.Embedding(table, ids));
}

void SinusoidalPositions(CaseWriter& c) {
  const ValueId positions = c.Ints(c.RandomShape(1, 2), 0, 30);
  const int64_t width = c.Between(1, 9);
  const ValueId x = c.b.SinusoidalPositions(positions, width);
  // Positions have no gradient, so a scale provides one.
  c.Result(c.b.Multiply(x, c.Float({width})));
}

void CrossEntropy(CaseWriter& c) {
  const Dim rows = c.Size();
  const int64_t vocabulary = c.Between(1, 17);
  const ValueId logits = c.Float({rows, vocabulary}, 3.0f);
  const ValueId labels = c.Ints({rows}, -1, vocabulary - 1);
  c.Result(c.b.CrossEntropy(logits, labels, c.Pick<double>({0.0, 0.1}),
                            c.Pick<double>({0.0, 1e-2})));
}

}  // namespace

std::vector<Family> LookupFamilies() {
  return {{"embedding", 400, Embedding},
          {"positions", 150, SinusoidalPositions},
          {"cross_entropy", 400, CrossEntropy}};
}

}  // namespace gshard
