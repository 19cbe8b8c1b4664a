// Packs row-major weights into panels.

#ifndef TESTS_TESTING_PANELS_H_
#define TESTS_TESTING_PANELS_H_

#include "services/ops/panel_layout.h"
#include "services/tensor/tensor.h"

namespace gshard {

// Packs `batch` matrices of `rows` rows. Returns `weights` where NewPanels()
// has no panels for them, as on a processor without the instructions. If
// `transposed`, each matrix is stored as [columns, rows].
inline Tensor InPanels(const Tensor& weights, int64_t batch, int64_t rows,
                       bool transposed = false) {
  Tensor panels = NewPanels(weights.type(), weights.dims(), batch, rows);
  if (panels.empty()) return weights;
  const Tensor matrices = weights.Reshaped({batch, weights.size() / batch});
  for (int64_t i = 0; i < batch; ++i) {
    PackMatrix(matrices.Rows(i, i + 1), i, transposed, panels);
  }
  return panels;
}

}  // namespace gshard

#endif  // TESTS_TESTING_PANELS_H_
