// Attention of single queries to keys and values that lie in pages (cache.h).
//
//   R  rows, one query each       T  pages of a row at most
//   S  pages, P positions each    N  heads, D their width
//
// Row r sees lengths[r] keys: position j is in page pages[r, j / P] at j % P.
// Rows may share pages. A row's bits depend on its query, keys and values
// alone: not on where they lie, nor on the other rows. (They are not those of
// Attention(), which adds up in another order.)

#ifndef SERVICES_OPS_PAGED_ATTENTION_H_
#define SERVICES_OPS_PAGED_ATTENTION_H_

#include "absl/status/status.h"
#include "services/tensor/tensor.h"

namespace gshard {

// Whether `lengths` i32[R] and `pages` i32[R, T] name positions of caches
// [S, P, ...]: what the functions below REQUIRE. Pages behind a row's length
// are not looked at. Errors: InvalidArgument naming the first bad one.
absl::Status CheckPages(const Tensor& pages, const Tensor& lengths, int64_t S,
                        int64_t P);

// q [R, 1, N, D], keys and values [S, P, N, D] -> [R, 1, N, D]. `scale` is of
// the logits. A row that sees nothing gets zeros.
Tensor PagedAttention(const Tensor& q, const Tensor& keys, const Tensor& values,
                      const Tensor& pages, const Tensor& lengths, float scale);

}  // namespace gshard

#endif  // SERVICES_OPS_PAGED_ATTENTION_H_
