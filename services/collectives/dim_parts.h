// DimParts: a view of a tensor as equal parts along one dimension, with copies
// of a part to and from contiguous memory.

#ifndef SERVICES_COLLECTIVES_DIM_PARTS_H_
#define SERVICES_COLLECTIVES_DIM_PARTS_H_

#include <cstddef>
#include <cstdint>

#include "services/tensor/tensor.h"

namespace gshard {

class DimParts {
 public:
  // REQUIRES: 0 <= dim < dims.size() and `parts` divides dims[dim].
  DimParts(ElementType type, const Dims& dims, int dim, int parts);

  // Dims and bytes of one part.
  const Dims& part_dims() const { return part_dims_; }
  size_t part_bytes() const { return outer_ * run_; }

  // True if every part is contiguous: part r at r * part_bytes().
  bool contiguous() const { return outer_ <= 1; }

  // Copies part `index` of the tensor at `whole` to `part`, and back.
  void Take(const std::byte* whole, int index, std::byte* part) const;
  void Put(const std::byte* part, int index, std::byte* whole) const;

 private:
  Dims part_dims_;
  int64_t outer_;  // elements of the dimensions outside `dim`
  size_t run_;     // bytes of a part under one of them
  size_t stride_;  // bytes of the whole under one of them
};

}  // namespace gshard

#endif  // SERVICES_COLLECTIVES_DIM_PARTS_H_
