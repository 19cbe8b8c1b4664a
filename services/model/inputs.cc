#include "services/model/inputs.h"

#include <numeric>

namespace gshard {

void AddTokenInputs(const std::string& side, const Tensor& ids,
                    const Tensor& lengths, TensorMap& inputs) {
  const int64_t B = ids.dim(0), L = ids.dim(1);
  Tensor positions(ElementType::kInt32, {L});
  std::iota(positions.i32(), positions.i32() + L, 0);
  Tensor valid(ElementType::kInt32, {B, L});
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t l = 0; l < L; ++l) {
      valid.i32()[b * L + l] = l < lengths.i32()[b] ? 1 : 0;
    }
  }
  inputs[side] = ids;
  inputs[side + "_positions"] = std::move(positions);
  inputs[side + "_lengths"] = lengths;
  inputs[side + "_valid"] = std::move(valid);
}

Tensor KeyInput(uint64_t key) {
  Tensor scalar(ElementType::kInt64, Dims());
  *scalar.data<int64_t>() = static_cast<int64_t>(key);
  return scalar;
}

}  // namespace gshard
