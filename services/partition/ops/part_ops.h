// Operators of partitioned programs that depend on their part's position, and
// small ones on partial statistics. The lowerings (services/partition/lowering)
// insert them; models do not. Only the last one communicates. "At" stands for
// the attributes of part_position.h.
//
//   dropout_part(x, key)              dropout's attributes, at x
//   dropout_rows_part(x, rows, key)   dropout_rows' attributes, at x
//   attention_part(q, ...)            attention's operands, at q
//   attention_gradient_part(q, ...)   attention_gradient's operands, at q
//   embedding_part(table, ids)        at table: zeros for ids of other devices
//   embedding_gradient_part(dy, ids)  shape [v, M]; at the table
//   cross_entropy_sums(logits, labels, max) -> [N, 3]   at logits
//   cross_entropy_of_sums(sums, max, labels) -> loss, log_sum_exp
//                                     cross_entropy's attributes, words
//   cross_entropy_gradient_part(logits, labels, log_sum_exp, dloss)
//                                     cross_entropy's attributes, at logits
//   inverse_root(x)                   1 / sqrt(factor * x + epsilon)
//   reduce_max_ties(x, y)             dims: elements of x that equal their
//                                     largest, y, as a number
//   reduce_max_share(x, y, ties, dy)  dims: reduce_max_gradient, given ties
//
// For parts assembled from those of neighbours (halo.h); i is the index of the
// device along "axes":
//
//   part_floor() -> i64[]             axes, multiplier, offset, divisor:
//                                     LinearForm at i
//   part_remainder() -> i64[]         also factor, add: factor times
//                                     RemainderForm at i, plus add
//   part_limit(limit, x) -> i64[]     axes, dim: limit - i * size of `dim`
//   mask_outside(x, begin, end)       dim, value: x in [begin, end), value
//                                     elsewhere
//   overlay(under, over, begin, end)  dim: over in [begin, end), under
//   elsewhere
//
//   windowed_einsum(a, b)   equation, axes, parts, letter, whole: einsum where
//                           a has only the device's part of `letter`, whose
//                           size is `whole` (a shape of one dimension). Every
//                           device multiplies with the part of a that it has
//                           and passes it on: n products, n - 1 permutes.

#ifndef SERVICES_PARTITION_OPS_PART_OPS_H_
#define SERVICES_PARTITION_OPS_PART_OPS_H_

#include <vector>

#include "services/graph/op.h"

namespace gshard {

std::vector<OpDef> DropoutPartOps();
std::vector<OpDef> AttentionPartOps();
std::vector<OpDef> VocabularyPartOps();
std::vector<OpDef> InverseRootOps();
std::vector<OpDef> ReduceMaxPartOps();
std::vector<OpDef> MovedPartOps();
std::vector<OpDef> WindowedEinsumOps();

}  // namespace gshard

#endif  // SERVICES_PARTITION_OPS_PART_OPS_H_
