// Embedding lookup: table rows by id.
//
//   V  rows of the table (vocabulary)
//   M  width of a row

#ifndef SERVICES_OPS_EMBEDDING_H_
#define SERVICES_OPS_EMBEDDING_H_

#include <cstdint>

#include "absl/status/status.h"
#include "services/tensor/tensor.h"

namespace gshard {

// Whether every id (i32) is in [0, vocabulary), which the functions below
// REQUIRE. Errors: InvalidArgument naming the first bad id.
absl::Status CheckIds(const Tensor& ids, int64_t vocabulary);

// ids i32[...] -> f32[..., M]. The table [V, M] is float32, bfloat16 or, stored
// as the columns of a matrix [M, V] in panels, int8.
Tensor Embedding(const Tensor& table, const Tensor& ids);

// dresult [..., M], ids i32[...] -> dtable [V, M]. Rows with the same id are
// added in order of position.
Tensor EmbeddingGradient(const Tensor& dresult, const Tensor& ids,
                         int64_t vocabulary);

}  // namespace gshard

#endif  // SERVICES_OPS_EMBEDDING_H_
