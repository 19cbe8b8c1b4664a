// Reference for services/ops/matmul.h in plain loops, with sums in double.

#ifndef TESTS_REFERENCE_MATMUL_H_
#define TESTS_REFERENCE_MATMUL_H_

#include "services/ops/matmul.h"

namespace gshard::reference {

void Matmul(const MatmulShape& shape, const float* a, const float* b, float* c,
            bool accumulate = false);

}  // namespace gshard::reference

#endif  // TESTS_REFERENCE_MATMUL_H_
