// A process's credentials for its outgoing calls: TLS and its token.

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

// Credentials for a channel to `address`; adds the channel arguments that they
// need to `arguments`.
std::shared_ptr<grpc::ChannelCredentials> ClientCredentials(
    const Security& security, const std::string& address,
    grpc::ChannelArguments& arguments);

// TLS with whoever answers, without a certificate of this process.
std::shared_ptr<grpc::ChannelCredentials> UnverifiedCredentials();

// Adds the token to every call. gRPC's call credentials do so over TLS only;
// ValidateClientSecurity has decided where a token may travel without TLS.
std::vector<
    std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>>
TokenInterceptors(std::shared_ptr<const Security> security);

}  // namespace gshard

#endif  // SERVICES_RPC_SECURITY_CLIENT_CREDENTIALS_H_
