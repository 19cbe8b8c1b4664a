// HealthService: grpc.health.v1.Health like gRPC's own, with two differences: a
// request is read after its call has begun (raw_service.h), and the number of
// watchers is limited, in total and of one host.

#ifndef SERVICES_RPC_SERVER_HEALTH_SERVICE_H_
#define SERVICES_RPC_SERVER_HEALTH_SERVICE_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "services/rpc/server/raw_service.h"

namespace gshard {

// Thread-safe. No call begins after its server is gone.
class HealthService final : public RawService<grpc::Service> {
 public:
  // Further Watch calls get RESOURCE_EXHAUSTED, as do those of a host beyond
  // its share (services/base/share.h); Check is always answered.
  static constexpr int64_t kMaxWatchers = 1024;

  HealthService();

  // Sets the status of a service, or of the server if `service` is ""; a
  // service is unknown until its status is set. No effect after Shutdown().
  void Set(const std::string& service, bool serving);

  // Returns a function that tells whether everything that was set is serving;
  // it may outlive this object.
  std::function<bool()> AllServing() const;

  // Turns everything to NOT_SERVING for good and notifies watchers.
  void Shutdown();
  // Ends all Watch calls, so that the server can shut down.
  void EndWatchers();

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response);
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Watch(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* request);

 private:
  class Watcher;
  struct State;

  // Shared with watchers, which may outlive this object.
  const std::shared_ptr<State> state_;
};

}  // namespace gshard

#endif  // SERVICES_RPC_SERVER_HEALTH_SERVICE_H_
