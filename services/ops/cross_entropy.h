// Cross entropy of logits with label smoothing, float32.
//
//   N  rows (target tokens)
//   V  vocabulary
//
// The target distribution of a row gives its label 1 - smoothing + smoothing/V
// and every other word smoothing/V. The z-loss adds z_loss * log_sum_exp^2,
// which keeps logits from drifting. Rows with a negative label are padding:
// their loss and gradient are zero.

#ifndef SERVICES_OPS_CROSS_ENTROPY_H_
#define SERVICES_OPS_CROSS_ENTROPY_H_

#include "services/tensor/tensor.h"

namespace gshard {

struct CrossEntropyOptions {
  float smoothing = 0.0f;  // in [0, 1)
  float z_loss = 0.0f;     // >= 0
};

struct CrossEntropyResult {
  Tensor loss_sum;     // scalar: sum over rows, added in row order in double
  Tensor log_sum_exp;  // [N], 0 for padding; the gradient needs it
};

// logits [N, V]; labels i32[N], less than V.
CrossEntropyResult CrossEntropy(const Tensor& logits, const Tensor& labels,
                                const CrossEntropyOptions& options);

// dlogits [N, V] for the upstream gradient `dloss_sum` (scalar).
Tensor CrossEntropyGradient(Tensor logits, const Tensor& labels,
                            const Tensor& log_sum_exp,
                            const CrossEntropyOptions& options,
                            const Tensor& dloss_sum);

}  // namespace gshard

#endif  // SERVICES_OPS_CROSS_ENTROPY_H_
