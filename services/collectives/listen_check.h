// Checks whether a member can listen on a host. Gloo checks, too, but leaks
// and throws.

#ifndef SERVICES_COLLECTIVES_LISTEN_CHECK_H_
#define SERVICES_COLLECTIVES_LISTEN_CHECK_H_

#include <string>

#include "absl/status/status.h"

namespace gshard {

// Errors: InvalidArgument if `host` is not a name or address of this machine.
absl::Status CheckListenHost(const std::string& host);

}  // namespace gshard

#endif  // SERVICES_COLLECTIVES_LISTEN_CHECK_H_
