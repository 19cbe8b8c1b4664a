// Rows of a table by id.
//
//   V  rows of the table (vocabulary)
//   M  width of a row

#ifndef SERVICES_OPS_EMBEDDING_H_
#define SERVICES_OPS_EMBEDDING_H_

#include <cstdint>

#include "absl/status/status.h"
#include "services/tensor/tensor.h"

namespace gshard {

// Whether every id (i32) is in [0, vocabulary): what the functions below
// REQUIRE of them. Errors: InvalidArgument naming the first bad id.
absl::Status CheckIds(const Tensor& ids, int64_t vocabulary);

// table [V, M] of float32, bfloat16 or, as the columns of a matrix [M, V] in
// panels, int8; ids i32[...] -> f32[..., M].
Tensor Embedding(const Tensor& table, const Tensor& ids);

// dresult [..., M], ids i32[...] -> dtable [V, M]. Rows of the same id are
// added in the order of their position.
Tensor EmbeddingGradient(const Tensor& dresult, const Tensor& ids,
                         int64_t vocabulary);

}  // namespace gshard

#endif  // SERVICES_OPS_EMBEDDING_H_
