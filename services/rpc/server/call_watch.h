// Interceptors that notify a ConnectionWatch of a server's calls: when a
// message may arrive, when it has arrived, and when no more are read.

#ifndef SERVICES_RPC_SERVER_CALL_WATCH_H_
#define SERVICES_RPC_SERVER_CALL_WATCH_H_

#include <grpcpp/support/server_interceptor.h>

#include <memory>
#include <set>
#include <string>

#include "services/rpc/server/connection_watch.h"

namespace gshard {

// For ServerShell, as the last of its interceptors, which sees headers first
// and so as they came. The methods of `raw_services` ("package.Service")
// receive their messages as bytes, see raw_service.h. In other services gRPC
// has parsed the request and does not report its size, so a message counts as
// its maximum size.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>
CallWatchFactory(std::shared_ptr<ConnectionWatch> watch,
                 std::set<std::string> raw_services);

}  // namespace gshard

#endif  // SERVICES_RPC_SERVER_CALL_WATCH_H_
