// Filling with one value, for any element type.

#ifndef SERVICES_OPS_FILL_H_
#define SERVICES_OPS_FILL_H_

#include <cstddef>
#include <cstdint>

#include "services/tensor/element_type.h"

namespace gshard {

// Whether a tensor of `type` can hold `value`: any number for floating-point
// types, otherwise integers in the type's range.
bool IsElement(ElementType type, double value);

// Writes `count` elements of `value`. REQUIRES: IsElement(type, value).
void Fill(ElementType type, double value, std::byte* to, int64_t count);

}  // namespace gshard

#endif  // SERVICES_OPS_FILL_H_
