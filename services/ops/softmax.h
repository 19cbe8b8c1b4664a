// Softmax over the last dimension, float32.

#ifndef SERVICES_OPS_SOFTMAX_H_
#define SERVICES_OPS_SOFTMAX_H_

#include "services/tensor/tensor.h"

namespace gshard {

// exp(x - max) / sum, row by row. The bits of a row do not depend on other
// rows.
Tensor Softmax(Tensor x);

// dx = y * (dy - sum(y * dy)), with y = Softmax(x).
Tensor SoftmaxGradient(const Tensor& y, Tensor dy);

// What a row's softmax can be computed from again: its elements are exp(scale *
// x - max) * factor. Both are 0 for a row without elements.
struct SoftmaxStatistics {
  float max;
  float factor;  // 1 / sum
};

// In place: the softmax of `scale` times the first `visible` elements; elements
// from there to `padded` are set to 0.
SoftmaxStatistics SoftmaxRow(float* x, int64_t visible, int64_t padded,
                             float scale);

// The same, given what SoftmaxRow returned for these elements: the same bits.
void SoftmaxRowAgain(float* x, int64_t visible, int64_t padded, float scale,
                     SoftmaxStatistics statistics);

}  // namespace gshard

#endif  // SERVICES_OPS_SOFTMAX_H_
