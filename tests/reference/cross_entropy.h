// Reference for services/ops/cross_entropy.h in plain loops, with sums in
// double.

#ifndef TESTS_REFERENCE_CROSS_ENTROPY_H_
#define TESTS_REFERENCE_CROSS_ENTROPY_H_

#include "services/ops/cross_entropy.h"

namespace gshard::reference {

CrossEntropyResult CrossEntropy(const Tensor& logits, const Tensor& labels,
                                const CrossEntropyOptions& options);
Tensor CrossEntropyGradient(const Tensor& logits, const Tensor& labels,
                            const CrossEntropyOptions& options,
                            const Tensor& dloss_sum);

}  // namespace gshard::reference

#endif  // TESTS_REFERENCE_CROSS_ENTROPY_H_
