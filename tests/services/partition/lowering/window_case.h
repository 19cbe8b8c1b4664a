// Random cases for operators that move dimensions: draws, meshes and splits.

#ifndef TESTS_SERVICES_PARTITION_LOWERING_WINDOW_CASE_H_
#define TESTS_SERVICES_PARTITION_LOWERING_WINDOW_CASE_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "services/base/random.h"
#include "tests/services/partition/lowering/partitioned_case.h"

namespace gshard {

// A deterministic function of its seed.
class WindowCase {
 public:
  explicit WindowCase(uint64_t seed) : seed_(seed) {}

  // In [low, high].
  int64_t Draw(int64_t low, int64_t high) {
    return low +
           static_cast<int64_t>(RandomBelow(seed_, draws_++, high - low + 1));
  }

  // 1, 2, 3, 4 or 8 devices in a line, or 2 x 2.
  DeviceMesh Mesh() {
    const int64_t devices[] = {1, 2, 3, 4, 8};
    const int64_t i = Draw(0, 5);
    square_ = i == 5;
    return square_ ? Square() : Line(devices[i]);
  }

  // Splits one of `dims` along each axis of the mesh that Mesh() returned.
  ValueId Cut(Builder& b, ValueId value, const std::vector<int>& dims) {
    const auto any = [&] { return dims[Draw(0, dims.size() - 1)]; };
    if (!square_) return Split(b, value, any(), "d");
    return Split(b, Split(b, value, any(), "x"), any(), "y");
  }

 private:
  const uint64_t seed_;
  uint64_t draws_ = 0;
  bool square_ = false;
};

inline ValueId FloatInput(Builder& b, const std::string& name, Shape shape) {
  return b.Input(name, {ElementType::kFloat32, std::move(shape)});
}

// Whether devices exchanged borders.
inline bool Shifts(const std::vector<std::string>& collectives) {
  return std::count(collectives.begin(), collectives.end(), "shift") > 0;
}

// 0, 1, ... as i32.
inline Tensor Counting(Dims dims) {
  Tensor tensor(ElementType::kInt32, std::move(dims));
  for (int64_t i = 0; i < tensor.size(); ++i) {
    tensor.i32()[i] = static_cast<int32_t>(i);
  }
  return tensor;
}

}  // namespace gshard

#endif  // TESTS_SERVICES_PARTITION_LOWERING_WINDOW_CASE_H_
