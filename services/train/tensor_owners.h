// TensorOwners: which member of a group owns which dense tensors.

#ifndef SERVICES_TRAIN_TENSOR_OWNERS_H_
#define SERVICES_TRAIN_TENSOR_OWNERS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "services/model/parameters.h"

namespace gshard {

// By rank: the names of what each owns, in their order.
using TensorOwners = std::vector<std::vector<std::string>>;

// Gives each of `specs` to one of `members`, so that all have about as many
// bytes: the largest first, to whoever has least. Tensors are not cut, for an
// optimizer looks at a whole one; so nobody has less than the largest takes.
// A pure function of its arguments. REQUIRES: members >= 1.
TensorOwners DivideAmong(const std::vector<ParameterSpec>& specs, int members);

// Errors: InvalidArgument unless each of `specs`, and nothing else, has one
// owner.
absl::Status CheckOwners(const std::vector<ParameterSpec>& specs,
                         const TensorOwners& owners);

}  // namespace gshard

#endif  // SERVICES_TRAIN_TENSOR_OWNERS_H_
