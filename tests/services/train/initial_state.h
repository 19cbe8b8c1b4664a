#ifndef TESTS_SERVICES_TRAIN_INITIAL_STATE_H_
#define TESTS_SERVICES_TRAIN_INITIAL_STATE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "services/train/optimizer.h"

namespace gshard {

// State tensors of StateShapes(dims), zero.
inline std::vector<Tensor> InitialState(const Optimizer& optimizer,
                                        absl::Span<const int64_t> dims) {
  std::vector<Tensor> state;
  for (const NamedShape& shape : optimizer.StateShapes(dims)) {
    state.push_back(Tensor::Zeros(ElementType::kFloat32, shape.dims));
  }
  return state;
}

}  // namespace gshard

#endif  // TESTS_SERVICES_TRAIN_INITIAL_STATE_H_
