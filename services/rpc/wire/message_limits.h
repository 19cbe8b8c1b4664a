// Default size limits of metadata and messages, for clients and servers.

#ifndef SERVICES_RPC_WIRE_MESSAGE_LIMITS_H_
#define SERVICES_RPC_WIRE_MESSAGE_LIMITS_H_

#include <cstddef>

namespace gshard {

// Maximum bytes of a call's metadata.
inline constexpr int kMaxMetadataBytes = 16 << 10;

// Maximum bytes of one message, unless configured otherwise.
inline constexpr size_t kDefaultMaxMessageBytes = size_t{64} << 20;

// Of these, what senders leave for all but the payload of a frame.
inline constexpr size_t kHeaderAllowance = size_t{64} << 10;

}  // namespace gshard

#endif  // SERVICES_RPC_WIRE_MESSAGE_LIMITS_H_
