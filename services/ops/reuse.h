// Overwriting an argument that nobody else holds.

#ifndef SERVICES_OPS_REUSE_H_
#define SERVICES_OPS_REUSE_H_

#include "services/tensor/tensor.h"

namespace gshard {

// `x` itself if it is the only holder of its buffer, else a new tensor of the
// same type and sizes, contents undefined. Write element i only after reading
// element i of x.
inline Tensor ReuseOrAllocate(const Tensor& x) {
  return x.unique() ? x : Tensor(x.type(), x.dims());
}

}  // namespace gshard

#endif  // SERVICES_OPS_REUSE_H_
