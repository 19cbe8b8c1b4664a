// Asking a server process how it is, as orchestrators of containers do: the
// program itself, started with --probe and the flags of the process that
// serves, so that a probe has its address and its certificates.

#ifndef SERVICES_RPC_CLIENT_PROBE_H_
#define SERVICES_RPC_CLIENT_PROBE_H_

#include <chrono>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "services/config/process_options.h"

namespace gshard {

inline constexpr std::chrono::milliseconds kProbeTimeout{5'000};

// OK if the process that was started with `options` and is called where others
// call it, see AdvertisedAddress, is as options.probe asks: "live" if it
// answers at all, "joined" if it serves, "ready" if it serves `service`.
//
// Errors: FailedPrecondition if it answers, but does not serve; Unavailable or
// DeadlineExceeded without an answer; InvalidArgument of the address or the
// security; those of Security::CreateForClient.
absl::Status Probe(const ProcessOptions& options, absl::string_view service,
                   std::chrono::milliseconds timeout = kProbeTimeout);

}  // namespace gshard

#endif  // SERVICES_RPC_CLIENT_PROBE_H_
