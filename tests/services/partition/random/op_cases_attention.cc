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
  attributes.keep_statistics = true;
  if (c.Chance(0.3)) attributes.dropout_rate = 0.3;
  attributes.salt = c.Below(4);
  const ValueId q = c.Float({batch, queries, heads, width});
  const ValueId k = c.Float({batch, keys, heads, width});
  const ValueId v = c.Float({batch, keys, heads, width});
  const ValueId lengths = c.Ints({batch}, 0, c.ValueOf(keys));
  const ValueId key = attributes.dropout_rate > 0 ? c.Key() : kNoValue;
  c.Result(c.b.Attention(q, k, v, lengths, key, attributes));
}

// A cache of a few pages; the sizes that page lookups use cannot be 0.
struct Pages {
  explicit Pages(CaseWriter& c)
      : count(c.Between(1, 6)), positions(c.Between(1, 4)) {}

  Dim count, positions;
};

void PagedAttention(CaseWriter& c) {
  c.differentiable = false;
  const Pages pages(c);
  const Dim rows = c.Size(), heads = c.Size(), width = c.Between(1, 5);
  const Dim most = c.Between(1, 3);
  const ValueId q = c.Float({rows, 1, heads, width});
  const ValueId keys = c.Float({pages.count, pages.positions, heads, width});
  const ValueId values = c.Float({pages.count, pages.positions, heads, width});
  const ValueId table = c.Ints({rows, most}, 0, c.ValueOf(pages.count) - 1);
  const ValueId lengths =
      c.Ints({rows}, 0, c.ValueOf(most) * c.ValueOf(pages.positions));
  c.Result(c.b.AddOne("paged_attention", {q, keys, values, table, lengths},
                      {{"scale", 0.7}}));
}

void UpdateCache(CaseWriter& c) {
  c.differentiable = false;
  const Pages pages(c);
  const Dim rows = c.Size(), heads = c.Size(), width = c.Size();
  const ValueId cache = c.Float({pages.count, pages.positions, heads, width});
  const ValueId entry = c.Float({rows, 1, heads, width});
  const ValueId slots = c.Ints(
      {rows}, 0, c.ValueOf(pages.count) * c.ValueOf(pages.positions) - 1);
  c.Result(c.b.AddOne("update_cache", {cache, entry, slots}));
}

}  // namespace

std::vector<Family> AttentionFamilies() {
  return {{"attention", 700, Attention},
          {"paged_attention", 200, PagedAttention},
          {"update_cache", 200, UpdateCache}};
}

}  // namespace gshard
