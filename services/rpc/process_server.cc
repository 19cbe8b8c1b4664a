#include "services/rpc/process_server.h"

#include <utility>

#include "absl/time/time.h"

namespace gshard {

size_t MaxMessageBytes(const ProcessOptions& options) {
  return static_cast<size_t>(options.max_message_mib) << 20;
}

std::chrono::milliseconds Silence(const ProcessOptions& options) {
  return std::chrono::milliseconds(options.lease_ms);
}

ServerOptions ServerOptionsOf(const ProcessOptions& options) {
  return {.address = options.listen,
          .reflection = options.reflection,
          .max_message_bytes = MaxMessageBytes(options),
          .max_calls = options.max_calls,
          .limits = {.connections = options.max_connections,
                     .peer_connections = options.max_peer_connections,
                     .held_bytes = options.max_held_mib << 20},
          .silence = Silence(options),
          .max_connection_idle =
              absl::ToChronoMilliseconds(options.max_connection_idle),
          .max_connection_age =
              absl::ToChronoMilliseconds(options.max_connection_age)};
}

ChannelOptions ChannelOptionsOf(const ProcessOptions& options,
                                std::shared_ptr<const Security> security) {
  return {.max_message_bytes = MaxMessageBytes(options),
          .security = std::move(security),
          .silence = Silence(options)};
}

}  // namespace gshard
