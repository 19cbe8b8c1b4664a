// Reduction: how a collective combines the members' values.
//
// Values are combined in rank order, element by element, ((x0 + x1) + x2) +
// ..., so that the result has the same bits on every member, for every
// transport and chunking.

#ifndef SERVICES_COLLECTIVES_REDUCTION_H_
#define SERVICES_COLLECTIVES_REDUCTION_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "services/tensor/element_type.h"

namespace gshard {

// A NaN on any member makes the result NaN, in kMax too. Sums of integers wrap
// around.
enum class Reduction { kSum, kMax };

// Errors: InvalidArgument for element types that are not numbers: u8.
absl::Status CheckReducible(ElementType type);

// result[i] = reduction over r of parts[r][i], for `count` elements each.
// `result` may be parts[0], else must not overlap any part.
//
// REQUIRES: CheckReducible(type) is OK and there is at least one part.
void ReduceInRankOrder(ElementType type, Reduction reduction,
                       absl::Span<const std::byte* const> parts, int64_t count,
                       std::byte* result);

}  // namespace gshard

#endif  // SERVICES_COLLECTIVES_REDUCTION_H_
