// How a process shows who it is when it calls: TLS and its token.

#ifndef SERVICES_RPC_SECURITY_CLIENT_CREDENTIALS_H_
#define SERVICES_RPC_SECURITY_CLIENT_CREDENTIALS_H_

#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/client_interceptor.h>

#include <memory>
#include <string>
#include <vector>

#include "services/rpc/security/security.h"

namespace gshard {

// For a channel to `address`; sets what they need in `arguments`.
std::shared_ptr<grpc::ChannelCredentials> ClientCredentials(
    const Security& security, const std::string& address,
    grpc::ChannelArguments& arguments);

// Adds the token to every call. gRPC's call credentials do so only over TLS;
// where a token may travel without, ValidateClientSecurity has decided.
std::vector<
    std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>>
TokenInterceptors(std::shared_ptr<const Security> security);

}  // namespace gshard

#endif  // SERVICES_RPC_SECURITY_CLIENT_CREDENTIALS_H_
