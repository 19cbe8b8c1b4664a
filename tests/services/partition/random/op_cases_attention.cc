// attention and its cache.

#include "tests/services/partition/random/random_case.h"

namespace gshard {
namespace {

void Attention(CaseWriter& c) {
  const Dim batch = c.Size(), heads = c.Size();
  const bool causal = c.Chance(0.5);
  const Dim queries = c.Size();
  const Dim keys = causal || c.Chance(0.3) ? queries : c.Size();
  const Dim width = c.Between(1, 5);
  AttentionAttributes attributes;
  attributes.causal = causal;
  attributes.scale = 0.7;
  attributes.keep_weights = true;
  if (c.Chance(0.3)) attributes.dropout_rate = 0.3;
  attributes.salt = c.Below(4);
  const ValueId q = c.Float({batch, queries, heads, width});
  const ValueId k = c.Float({batch, keys, heads, width});
  const ValueId v = c.Float({batch, keys, heads, width});
  const ValueId lengths = c.Ints({batch}, 0, c.ValueOf(keys));
  const ValueId key = attributes.dropout_rate > 0 ? c.Key() : kNoValue;
  c.Result(c.b.Attention(q, k, v, lengths, key, attributes));
}

void UpdateCache(CaseWriter& c) {
  c.differentiable = false;
  const Dim batch = c.Size(), heads = c.Size(), width = c.Size();
  Dim length = c.Size();
  while (length == Dim(0)) length = c.Size();
  const ValueId cache = c.Float({batch, length, heads, width});
  const ValueId entry = c.Float({batch, 1, heads, width});
  const ValueId positions = c.Ints({batch}, 0, c.ValueOf(length) - 1);
  c.Result(c.b.AddOne("update_cache", {cache, entry, positions}));
}

}  // namespace

std::vector<Family> AttentionFamilies() {
  return {{"attention", 700, Attention}, {"update_cache", 200, UpdateCache}};
}

}  // namespace gshard
