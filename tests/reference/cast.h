// Reference for services/ops/cast.h: rounds by arithmetic, not by bits.

#ifndef TESTS_REFERENCE_CAST_H_
#define TESTS_REFERENCE_CAST_H_

#include "services/tensor/tensor.h"

namespace gshard::reference {

Tensor Cast(const Tensor& x, ElementType type);

}  // namespace gshard::reference

#endif  // TESTS_REFERENCE_CAST_H_
