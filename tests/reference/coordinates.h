// Conversion between element indices and coordinates of a tensor.

#ifndef TESTS_REFERENCE_COORDINATES_H_
#define TESTS_REFERENCE_COORDINATES_H_

#include "services/tensor/tensor.h"

namespace gshard::reference {

// The coordinates of element `i` of a tensor with sizes `dims`.
inline Dims Coordinates(int64_t i, const Dims& dims) {
  Dims coordinates(dims.size());
  for (size_t d = dims.size(); d-- > 0;) {
    coordinates[d] = i % dims[d];
    i /= dims[d];
  }
  return coordinates;
}

// The index of the element at `coordinates`.
inline int64_t Offset(const Dims& coordinates, const Dims& dims) {
  int64_t offset = 0;
  for (size_t d = 0; d < dims.size(); ++d) {
    offset = offset * dims[d] + coordinates[d];
  }
  return offset;
}

}  // namespace gshard::reference

#endif  // TESTS_REFERENCE_COORDINATES_H_
