// Tells a ConnectionWatch of a server's calls: when a message of theirs may
// come, that it has come, that nothing more is read.

#ifndef SERVICES_RPC_SERVER_CALL_WATCH_H_
#define SERVICES_RPC_SERVER_CALL_WATCH_H_

#include <grpcpp/support/server_interceptor.h>

#include <memory>
#include <set>
#include <string>

#include "services/rpc/server/connection_watch.h"

namespace gshard {

// Interceptors for ServerShell. Messages are bytes, by raw_service.h, in the
// methods of `raw_services` ("package.Service"); in others gRPC has read the
// request, and shows no sizes, so that a message counts as what it may be.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>
CallWatchFactory(std::shared_ptr<ConnectionWatch> watch,
                 std::set<std::string> raw_services);

}  // namespace gshard

#endif  // SERVICES_RPC_SERVER_CALL_WATCH_H_
