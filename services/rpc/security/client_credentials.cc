#include "services/rpc/security/client_credentials.h"

#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <grpcpp/support/interceptor.h>

#include <memory>
#include <utility>

namespace gshard {
namespace {

using grpc::experimental::ClientInterceptorFactoryInterface;
using grpc::experimental::ClientRpcInfo;
using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::InterceptorBatchMethods;

class TokenInterceptor final : public grpc::experimental::Interceptor {
 public:
  explicit TokenInterceptor(std::string authorization)
      : authorization_(std::move(authorization)) {}

  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->emplace("authorization",
                                                 authorization_);
    }
    methods->Proceed();
  }

 private:
  const std::string authorization_;
};

class TokenInterceptorFactory final : public ClientInterceptorFactoryInterface {
 public:
  explicit TokenInterceptorFactory(std::shared_ptr<const Security> security)
      : security_(std::move(security)) {}

  grpc::experimental::Interceptor* CreateClientInterceptor(
      ClientRpcInfo*) override {
    return new TokenInterceptor(security_->authorization());
  }

 private:
  const std::shared_ptr<const Security> security_;
};

}  // namespace

std::shared_ptr<grpc::ChannelCredentials> ClientCredentials(
    const Security& security, const std::string& address,
    grpc::ChannelArguments& arguments) {
  const SecurityOptions& options = security.options();
  if (!CallsWithTls(options, address)) {
    return grpc::InsecureChannelCredentials();
  }
  if (!options.tls_peer_name.empty()) {
    arguments.SetSslTargetNameOverride(options.tls_peer_name);
  }
  grpc::experimental::TlsChannelCredentialsOptions tls;
  tls.set_certificate_provider(security.provider());
  tls.watch_root_certs();
  if (!options.tls_certificate.empty()) tls.watch_identity_key_cert_pairs();
  return grpc::experimental::TlsCredentials(tls);
}

std::shared_ptr<grpc::ChannelCredentials> UnverifiedCredentials() {
  grpc::experimental::TlsChannelCredentialsOptions tls;
  tls.set_verify_server_certs(false);
  tls.set_check_call_host(false);
  // The default one compares names.
  tls.set_certificate_verifier(
      std::make_shared<grpc::experimental::NoOpCertificateVerifier>());
  return grpc::experimental::TlsCredentials(tls);
}

std::vector<std::unique_ptr<ClientInterceptorFactoryInterface>>
TokenInterceptors(std::shared_ptr<const Security> security) {
  std::vector<std::unique_ptr<ClientInterceptorFactoryInterface>> factories;
  if (security != nullptr && !security->options().token_file.empty()) {
    factories.push_back(
        std::make_unique<TokenInterceptorFactory>(std::move(security)));
  }
  return factories;
}

}  // namespace gshard
