#include "services/train/optimizer.h"

namespace gshard {

double StateNumbers(const Optimizer& optimizer,
                    absl::Span<const int64_t> dims) {
  double numbers = 0;
  for (const NamedShape& shape : optimizer.StateShapes(dims)) {
    double size = 1;
    for (const int64_t dim : shape.dims) size *= static_cast<double>(dim);
    numbers += size;
  }
  return numbers;
}

}  // namespace gshard
