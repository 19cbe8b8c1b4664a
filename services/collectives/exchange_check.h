// Checks that every transport makes before an exchange.

#ifndef SERVICES_COLLECTIVES_EXCHANGE_CHECK_H_
#define SERVICES_COLLECTIVES_EXCHANGE_CHECK_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "services/collectives/communicator.h"

namespace gshard {

// Errors: InvalidArgument unless both have `size` entries and those of `rank`,
// the member itself, have the same size.
absl::Status CheckExchange(int rank, int size, absl::Span<const SendBytes> send,
                           absl::Span<const ReceiveBytes> receive);

}  // namespace gshard

#endif  // SERVICES_COLLECTIVES_EXCHANGE_CHECK_H_
