// CatchGloo: calls the gloo library, which throws.

#ifndef SERVICES_COLLECTIVES_GLOO_CALL_H_
#define SERVICES_COLLECTIVES_GLOO_CALL_H_

#include <exception>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "gloo/common/error.h"
#include "services/collectives/sigpipe_guard.h"

namespace gshard {

// Runs `call` and converts exceptions to a status: DeadlineExceeded,
// Unavailable for other network errors, else Internal.
template <typename Call>
absl::Status CatchGloo(const Call& call) {
  const SigpipeGuard guard;
  try {
    call();
    return absl::OkStatus();
  } catch (const gloo::IoException& e) {
    const std::string message = absl::AsciiStrToLower(e.what());
    if (absl::StrContains(message, "timeout") ||
        absl::StrContains(message, "timed out")) {
      return absl::DeadlineExceededError(e.what());
    }
    return absl::UnavailableError(e.what());
  } catch (const std::exception& e) {
    return absl::InternalError(e.what());
  }
}

}  // namespace gshard

#endif  // SERVICES_COLLECTIVES_GLOO_CALL_H_
