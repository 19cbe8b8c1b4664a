// Checks whether a member can listen at an address. Gloo checks, too, but leaks
// and throws.

#ifndef SERVICES_COLLECTIVES_LISTEN_CHECK_H_
#define SERVICES_COLLECTIVES_LISTEN_CHECK_H_

#include <string>

#include "absl/status/status.h"

namespace gshard {

// Errors: InvalidArgument if `host` is not a name or address of this machine.
absl::Status CheckListenHost(const std::string& host);

// Errors: InvalidArgument if this machine has no such network interface.
absl::Status CheckListenInterface(const std::string& network_interface);

}  // namespace gshard

#endif  // SERVICES_COLLECTIVES_LISTEN_CHECK_H_
