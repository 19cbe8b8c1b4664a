#include "services/rpc/client/probe.h"

#include <google/protobuf/wrappers.pb.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/security/certificate_file.h"
#include "services/rpc/security/security.h"
#include "services/rpc/wire/status.h"

namespace gshard {
namespace {

// grpc.health.v1's Check. Its messages have one field each, so they are encoded
// like these wrappers: the name of a service, and a status, where 1 is SERVING.
constexpr char kCheck[] = "/grpc.health.v1.Health/Check";
using Request = google::protobuf::StringValue;
using Response = google::protobuf::UInt32Value;
constexpr uint32_t kServing = 1;

constexpr std::chrono::seconds kProbeTimeout{5};

// Whether a server with TLS asks clients for no certificate. Then its own may
// be of an authority, and for a name, that these options do not have: --tls_ca,
// if there is one, is that of the servers that this process calls. Health
// checks need no token, and their answers are no secret.
bool ServesPublicTls(const SecurityOptions& options) {
  return options.tls_ca.empty() || options.tls_clients == "ignore";
}

// The result of a probe that cannot ask because of `why`. The process goes on
// with its connections and with what it has read; restarted, it could not.
absl::Status CannotAsk(const ProcessOptions& options, const absl::Status& why) {
  if (options.probe != "live") return why;
  LogWarning("the process cannot be asked", {{"status", why}});
  return absl::OkStatus();
}

}  // namespace

absl::Status Probe(const ProcessOptions& options, absl::string_view service) {
  const std::string address = AdvertisedAddress(options, options.listen);
  ChannelOptions how;
  if (!ServesTls(options.security, address)) {
    // --tls_ca and --token_file are for the servers that this process calls.
  } else if (ServesPublicTls(options.security)) {
    how.unverified_tls = true;
  } else {
    // The process presents the same certificate as a client of other servers.
    SecurityOptions as_client = options.security;
    as_client.auth_file.clear();
    absl::StatusOr<std::shared_ptr<Security>> security =
        Security::CreateForClient(as_client);
    if (!security.ok()) return CannotAsk(options, security.status());
    how.security = *std::move(security);
  }
  ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel,
                   CreateChannel(address, how));
  Request request;
  if (options.probe == "ready") request.set_value(std::string(service));
  Response response;
  grpc::ClientContext context;
  SetDeadline(context, kProbeTimeout);
  grpc::TemplatedGenericStub<Request, Response> stub(channel);
  std::promise<grpc::Status> done;
  stub.UnaryCall(&context, kCheck, {}, &request, &response,
                 [&done](grpc::Status status) { done.set_value(status); });
  const absl::Status status = FromGrpcStatus(done.get_future().get());
  if (!status.ok()) {
    // Both show this certificate. That it is refused is no sign of death.
    const absl::Status trusted =
        how.security == nullptr ? absl::OkStatus()
                                : CheckTrusted(options.security.tls_certificate,
                                               options.security.tls_ca);
    if (!trusted.ok()) return CannotAsk(options, trusted);
    return absl::Status(
        status.code(), absl::StrCat("asked ", address, ": ", status.message()));
  }
  if (options.probe != "live" && response.value() != kServing) {
    return absl::FailedPreconditionError(
        absl::StrCat(address, " answers, but is not ", options.probe));
  }
  return absl::OkStatus();
}

}  // namespace gshard
