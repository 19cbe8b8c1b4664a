// Reuse of an argument's buffer for the result.

#ifndef SERVICES_OPS_REUSE_H_
#define SERVICES_OPS_REUSE_H_

#include "services/tensor/tensor.h"

namespace gshard {

// `x` itself if its buffer is not shared, else a new tensor of the same type
// and sizes, contents undefined. As both may be the same memory, write element
// i only after reading element i of x.
inline Tensor ReuseOrAllocate(const Tensor& x) {
  return x.unique() ? x : Tensor(x.type(), x.dims());
}

}  // namespace gshard

#endif  // SERVICES_OPS_REUSE_H_
