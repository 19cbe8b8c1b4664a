// Reference for services/ops/paged_attention.h: row by row, with keys gathered
// position by position.

#ifndef TESTS_REFERENCE_PAGED_ATTENTION_H_
#define TESTS_REFERENCE_PAGED_ATTENTION_H_

#include "services/tensor/tensor.h"

namespace gshard::reference {

Tensor PagedAttention(const Tensor& q, const Tensor& keys, const Tensor& values,
                      const Tensor& pages, const Tensor& lengths, float scale);

}  // namespace gshard::reference

#endif  // TESTS_REFERENCE_PAGED_ATTENTION_H_
