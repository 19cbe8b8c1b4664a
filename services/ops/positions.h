// Sinusoidal position vectors (Vaswani et al., 2017), in the layout of
// Tensor2Tensor and Lingvo: all sines first, then all cosines.

#ifndef SERVICES_OPS_POSITIONS_H_
#define SERVICES_OPS_POSITIONS_H_

#include <cstdint>

#include "services/tensor/tensor.h"

namespace gshard {

// positions i32[...] -> f32[..., width]. With half = width / 2 and wavelengths
// from 2 pi to 10000 * 2 pi, for i in [0, half):
//
//   angle          = position * 10000^(-i / max(half - 1, 1))
//   [..., i]        = sin(angle)
//   [..., half + i] = cos(angle)
//
// The last element of an odd width is 0.
Tensor SinusoidalPositions(const Tensor& positions, int64_t width);

}  // namespace gshard

#endif  // SERVICES_OPS_POSITIONS_H_
