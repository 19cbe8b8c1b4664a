// Reference for services/ops/attention.h in plain loops, with sums in double.

#ifndef TESTS_REFERENCE_ATTENTION_H_
#define TESTS_REFERENCE_ATTENTION_H_

#include "services/ops/attention.h"

namespace gshard::reference {

AttentionResult Attention(const Tensor& q, const Tensor& k, const Tensor& v,
                          const Tensor& key_lengths,
                          const AttentionOptions& options);
AttentionGradients AttentionGradient(const Tensor& q, const Tensor& k,
                                     const Tensor& v, const Tensor& key_lengths,
                                     const AttentionOptions& options,
                                     const Tensor& statistics,
                                     const Tensor& dout);

}  // namespace gshard::reference

#endif  // TESTS_REFERENCE_ATTENTION_H_
