// Conversions between float32 and bfloat16 (services/tensor/bfloat16.h), with
// the same bits on every CPU.

#ifndef SERVICES_OPS_CAST_H_
#define SERVICES_OPS_CAST_H_

#include <cstdint>

#include "services/tensor/tensor.h"

namespace gshard {

// x with elements of `type`; x itself if it has that type. REQUIRES: both are
// kFloat32 or kBFloat16.
Tensor Cast(const Tensor& x, ElementType type);

// The same on plain arrays.
void CastRow(const float* x, BFloat16* out, int64_t size);
void CastRow(const BFloat16* x, float* out, int64_t size);

}  // namespace gshard

#endif  // SERVICES_OPS_CAST_H_
