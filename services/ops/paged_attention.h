// Attention of single queries over paged keys and values (cache.h).
//
//   R  rows, one query each       T  pages of a row at most
//   S  pages, P positions each    N  heads, D their width
//
// Row r sees lengths[r] keys; position j is in page pages[r, j / P] at j % P.
// Rows may share pages. The bits of a row depend only on its query, keys and
// values, not on their pages nor on other rows. (They differ from those of
// Attention(), which adds in another order.)

#ifndef SERVICES_OPS_PAGED_ATTENTION_H_
#define SERVICES_OPS_PAGED_ATTENTION_H_

#include "absl/status/status.h"
#include "services/tensor/tensor.h"

namespace gshard {

// Whether `lengths` i32[R] and `pages` i32[R, T] name positions of caches
// [S, P, ...], which PagedAttention REQUIRES. Pages beyond a row's length are
// ignored. Errors: InvalidArgument naming the first bad one.
absl::Status CheckPages(const Tensor& pages, const Tensor& lengths, int64_t S,
                        int64_t P);

// q [R, 1, N, D], keys and values [S, P, N, D] -> [R, 1, N, D]. Logits are
// multiplied by `scale`. Rows that see no key are zero.
Tensor PagedAttention(const Tensor& q, const Tensor& keys, const Tensor& values,
                      const Tensor& pages, const Tensor& lengths, float scale);

}  // namespace gshard

#endif  // SERVICES_OPS_PAGED_ATTENTION_H_
