// Key-value caches of incremental decoding, float32.
//
//   B  sequences   L  positions that the cache has room for
//   N  heads       D  width of a head

#ifndef SERVICES_OPS_CACHE_H_
#define SERVICES_OPS_CACHE_H_

#include "absl/status/status.h"
#include "services/tensor/tensor.h"

namespace gshard {

// Whether every position (i32[B]) is in [0, length): what the function below
// REQUIRES. Errors: InvalidArgument naming the first bad one.
absl::Status CheckPositions(const Tensor& positions, int64_t length);

// Writes entry [B, 1, N, D] into cache [B, L, N, D]: sequence b's at
// positions[b]. In place if nobody else holds the cache.
Tensor UpdateCache(Tensor cache, const Tensor& entry, const Tensor& positions);

}  // namespace gshard

#endif  // SERVICES_OPS_CACHE_H_
