// Health probes of a server process, as container orchestrators make them. The
// probe is the program itself, started with --probe and the flags of the
// serving process, so that it has that process's address and certificates.

#ifndef SERVICES_RPC_CLIENT_PROBE_H_
#define SERVICES_RPC_CLIENT_PROBE_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "services/config/process_options.h"

namespace gshard {

// Probes the process that was started with `options`, at its
// AdvertisedAddress(). A server without TLS is probed without, and one that
// asks clients for no certificate without verifying its own, both without a
// token. OK if it has the state options.probe: "live" if it answers at all, or
// nobody can ask it as long as its certificate's files are what they are, such
// as expired: a restart would not help; "joined" if its server is healthy,
// "ready" if `service` is healthy.
//
// Errors: FailedPrecondition if it answers but does not serve; Unavailable or
// DeadlineExceeded without an answer; InvalidArgument for the address or the
// security options; those of Security::CreateForClient and CheckTrusted.
absl::Status Probe(const ProcessOptions& options, absl::string_view service);

}  // namespace gshard

#endif  // SERVICES_RPC_CLIENT_PROBE_H_
