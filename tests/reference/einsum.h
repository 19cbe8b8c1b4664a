// Reference for services/ops/einsum.h in plain loops, with sums in double.

#ifndef TESTS_REFERENCE_EINSUM_H_
#define TESTS_REFERENCE_EINSUM_H_

#include "services/ops/einsum.h"

namespace gshard::reference {

Tensor Einsum(const EinsumSpec& spec, const Tensor& a, const Tensor& b);

}  // namespace gshard::reference

#endif  // TESTS_REFERENCE_EINSUM_H_
