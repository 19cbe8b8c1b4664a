// What the flags that all server processes have mean to their gRPC servers and
// channels.

#ifndef SERVICES_RPC_PROCESS_SERVER_H_
#define SERVICES_RPC_PROCESS_SERVER_H_

#include <chrono>
#include <cstddef>
#include <memory>

#include "services/config/process_options.h"
#include "services/rpc/channel.h"
#include "services/rpc/server.h"

namespace gshard {

size_t MaxMessageBytes(const ProcessOptions& options);

// After which a peer is taken for lost: --lease_ms.
std::chrono::milliseconds Silence(const ProcessOptions& options);

ServerOptions ServerOptionsOf(const ProcessOptions& options);

// Of a channel to another process of the system; `security` as in
// ChannelOptions.
ChannelOptions ChannelOptionsOf(const ProcessOptions& options,
                                std::shared_ptr<const Security> security);

}  // namespace gshard

#endif  // SERVICES_RPC_PROCESS_SERVER_H_
