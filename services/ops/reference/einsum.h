// The definition of services/ops/einsum.h in plain loops, with sums in double.

#ifndef SERVICES_OPS_REFERENCE_EINSUM_H_
#define SERVICES_OPS_REFERENCE_EINSUM_H_

#include "services/ops/einsum.h"

namespace gshard::reference {

Tensor Einsum(const EinsumSpec& spec, const Tensor& a, const Tensor& b);

}  // namespace gshard::reference

#endif  // SERVICES_OPS_REFERENCE_EINSUM_H_
