#include "tests/reference/matmul.h"

namespace gshard::reference {

void Matmul(const MatmulShape& shape, const float* a, const float* b, float* c,
            bool accumulate) {
  const auto [m, n, k, transpose_a, transpose_b, in_panels, streams] = shape;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = accumulate ? c[i * n + j] : 0.0;
      for (int64_t l = 0; l < k; ++l) {
        sum += static_cast<double>(a[transpose_a ? l * m + i : i * k + l]) *
               b[transpose_b ? j * k + l : l * n + j];
      }
      c[i * n + j] = static_cast<float>(sum);
    }
  }
}

}  // namespace gshard::reference
