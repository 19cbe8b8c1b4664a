// TensorOwners: assigns dense tensors to the members of a group.

#ifndef SERVICES_TRAIN_TENSOR_OWNERS_H_
#define SERVICES_TRAIN_TENSOR_OWNERS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "services/model/parameters.h"

namespace gshard {

// By rank: the names of the tensors that the member owns, in their order.
using TensorOwners = std::vector<std::vector<std::string>>;

// Distributes `specs` over `members` with about equal bytes: each tensor,
// largest first, goes to the member with the least so far. Tensors are not
// split, as an optimizer needs a whole one; so the largest load is at least the
// largest tensor. A pure function of its arguments. REQUIRES: members >= 1.
TensorOwners DivideAmong(const std::vector<ParameterSpec>& specs, int members);

// Errors: InvalidArgument unless each of `specs` has exactly one owner and no
// other names occur.
absl::Status CheckOwners(const std::vector<ParameterSpec>& specs,
                         const TensorOwners& owners);

}  // namespace gshard

#endif  // SERVICES_TRAIN_TENSOR_OWNERS_H_
