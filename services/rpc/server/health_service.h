// HealthService: grpc.health.v1.Health like gRPC's own, with two additions: a
// request is read after its call is known (raw_service.h), and watchers are
// limited.

#ifndef SERVICES_RPC_SERVER_HEALTH_SERVICE_H_
#define SERVICES_RPC_SERVER_HEALTH_SERVICE_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "services/rpc/server/raw_service.h"

namespace gshard {

// Thread-safe. No call begins once its server is gone.
class HealthService final : public RawService<grpc::Service> {
 public:
  // Watch calls beyond get RESOURCE_EXHAUSTED; Check is always answered.
  static constexpr size_t kMaxWatchers = 1024;

  HealthService();

  // Of "" and of services by name; unknown until it is set. No effect after
  // Shutdown().
  void Set(const std::string& service, bool serving);

  // Tells whether all that was set serves; may outlive this.
  std::function<bool()> AllServing() const;

  // Nothing is served any more, for good, and those who watch are told.
  void Shutdown();
  // Watch calls end, so that the server can.
  void EndWatchers();

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response);
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Watch(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* request);

 private:
  class Watcher;
  struct State;

  // Shared with watchers, which may outlive this.
  const std::shared_ptr<State> state_;
};

}  // namespace gshard

#endif  // SERVICES_RPC_SERVER_HEALTH_SERVICE_H_
