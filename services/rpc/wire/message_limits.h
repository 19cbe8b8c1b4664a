// How large what either side of a call accepts may be.

#ifndef SERVICES_RPC_WIRE_MESSAGE_LIMITS_H_
#define SERVICES_RPC_WIRE_MESSAGE_LIMITS_H_

#include <cstddef>

namespace gshard {

// Bytes of a call's metadata.
inline constexpr int kMaxMetadataBytes = 16 << 10;

// Of one message, unless configured otherwise.
inline constexpr size_t kDefaultMaxMessageBytes = size_t{64} << 20;

}  // namespace gshard

#endif  // SERVICES_RPC_WIRE_MESSAGE_LIMITS_H_
