// Reference for services/ops/cast.h: rounds by arithmetic, not by bits. And the
// end of what others compute in float64.

#ifndef TESTS_REFERENCE_CAST_H_
#define TESTS_REFERENCE_CAST_H_

#include <vector>

#include "services/tensor/tensor.h"

namespace gshard::reference {

Tensor Cast(const Tensor& x, ElementType type);

// float32. REQUIRES: as many values as `dims` has elements.
Tensor FromDoubles(const Dims& dims, const std::vector<double>& values);

}  // namespace gshard::reference

#endif  // TESTS_REFERENCE_CAST_H_
