#include "services/rpc/server/call_guard.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/base/log_budget.h"
#include "services/base/status_macros.h"
#include "services/rpc/security/audit.h"
#include "services/rpc/wire/trace_context.h"

namespace gshard {
namespace {

using grpc::experimental::TlsServerCredentialsOptions;

constexpr int64_t kRefusalLinesPerSecond = 5;

// Maximum open health checks of one connection: unknown callers may make them,
// and a call takes memory until its answer has been read.
constexpr int64_t kMaxHealthChecks = 16;

// Bytes that a client may send in a call before it learns of the refusal.
constexpr int64_t kRefusedBytes = ConnectionMeter::kStreamWindow + (8 << 10);

absl::string_view View(const grpc_slice& slice) {
  return {reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)),
          GRPC_SLICE_LENGTH(slice)};
}

struct Guard {
  std::shared_ptr<const Security> security;
  std::shared_ptr<const CallGate> gate;
};

// What is known of a call before it has a handler.
struct Arrival {
  std::string method;
  std::string request_id;
  Credentials credentials;
  Caller caller;  // set once identified
};

Arrival ReadArrival(grpc_auth_context* context, const grpc_metadata* metadata,
                    size_t count) {
  Arrival arrival;
  for (size_t i = 0; i < count; ++i) {
    const absl::string_view key = View(metadata[i].key);
    const absl::string_view value = View(metadata[i].value);
    if (key == ":path") arrival.method = std::string(value);
    if (key == "x-request-id" && IsRequestId(value)) {
      arrival.request_id = std::string(value);
    }
    if (key == "authorization") {
      std::optional<std::string>& shown = arrival.credentials.authorization;
      // Several headers count as one that is invalid.
      shown = shown.has_value() ? "" : std::string(value);
    }
  }
  grpc_auth_property_iterator names = grpc_auth_context_find_properties_by_name(
      context, GRPC_X509_SAN_PROPERTY_NAME);
  while (const auto* name = grpc_auth_property_iterator_next(&names)) {
    arrival.credentials.certificate_names.emplace_back(name->value,
                                                       name->value_length);
  }
  return arrival;
}

absl::Status Admit(const Guard& guard, const grpc_auth_context* context,
                   Arrival& arrival) {
  const CallGate& gate = *guard.gate;
  const MethodAccess* const access = FindMethodAccess(arrival.method);
  if (access != nullptr && access->open) {
    if (gate.watch->BriefCalls(context) < kMaxHealthChecks) {
      return absl::OkStatus();
    }
    return absl::UnavailableError(
        absl::StrCat("expected at most ", kMaxHealthChecks,
                     " health checks at a time on a connection, got one more"));
  }
  ASSIGN_OR_RETURN(arrival.caller,
                   guard.security->Identify(arrival.credentials));
  RETURN_IF_ERROR(CheckAccess(arrival.caller, arrival.method));
  // A connection's first call is refused when the watch knows the connection:
  // otherwise its bytes would count against it.
  if (access->for_members() || gate.calls.HasRoom(arrival.caller.name) ||
      !gate.watch->Knows(context)) {
    return absl::OkStatus();
  }
  return gate.NoRoom();
}

void LogRefusal(const Arrival& arrival, const std::string& id,
                const absl::Status& status) {
  const MethodAccess* const access = FindMethodAccess(arrival.method);
  if (absl::IsPermissionDenied(status) && !access->act.empty()) {
    Audit({std::string(access->act), {arrival.caller, id}, /*target=*/""},
          status);
  }
  static LogBudget& budget = *new LogBudget(kRefusalLinesPerSecond);
  const auto left_out = budget.Take();
  if (!left_out.has_value()) return;
  // An unknown method's name may be any text, so it is not logged.
  const bool known = access != nullptr;
  LogWarning("refused a call", {{"method", known ? arrival.method : "unknown"},
                                {"status", status},
                                {"request_id", id},
                                {"lines_left_out", *left_out}});
}

// gRPC's threads run this for every call.
void Process(void* state, grpc_auth_context* context,
             const grpc_metadata* metadata, size_t count,
             grpc_process_auth_metadata_done_cb done, void* user_data) {
  const Guard& guard = *static_cast<const Guard*>(state);
  if (guard.gate->closed.load(std::memory_order_relaxed)) {
    return done(user_data, nullptr, 0, nullptr, 0, GRPC_STATUS_UNAVAILABLE,
                "the server is shutting down");
  }
  Arrival arrival = ReadArrival(context, metadata, count);
  const absl::Status status = Admit(guard, context, arrival);
  if (status.ok()) {
    return done(user_data, nullptr, 0, nullptr, 0, GRPC_STATUS_OK, nullptr);
  }
  // gRPC sends no metadata with a refusal, so the message contains the request
  // id.
  const std::string id =
      arrival.request_id.empty() ? NewRequestId() : arrival.request_id;
  LogRefusal(arrival, id, status);
  // Unknown callers could otherwise hide held bytes behind refused calls.
  const bool known = !arrival.caller.name.empty();
  guard.gate->watch->Refuse(context, known ? kRefusedBytes : 0);
  done(user_data, nullptr, 0, nullptr, 0,
       static_cast<grpc_status_code>(status.code()),
       absl::StrCat(status.message(), " (request ", id, ")").c_str());
}

void Destroy(void* state) { delete static_cast<Guard*>(state); }

grpc_ssl_client_certificate_request_type RequestType(
    const SecurityOptions& options) {
  if (options.tls_clients == "require") {
    return GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY;
  }
  if (options.tls_clients == "allow") {
    return GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY;
  }
  return GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
}

grpc_server_credentials* TlsCredentials(const Security& security) {
  TlsServerCredentialsOptions options(security.provider());
  options.watch_identity_key_cert_pairs();
  if (!security.options().tls_ca.empty()) options.watch_root_certs();
  options.set_cert_request_type(RequestType(security.options()));
  return grpc_tls_server_credentials_create(options.c_credentials_options());
}

class Guarded final : public grpc::ServerCredentials {
 public:
  Guarded(Guard guard, const std::string& address)
      : credentials_(ServesTls(guard.security->options(), address)
                         ? TlsCredentials(*guard.security)
                         : grpc_insecure_server_credentials_create()) {
    grpc_server_credentials_set_auth_metadata_processor(
        credentials_, {.process = Process,
                       .destroy = Destroy,
                       .state = new Guard(std::move(guard))});
  }
  ~Guarded() override { grpc_server_credentials_release(credentials_); }

  void SetAuthMetadataProcessor(
      const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address,
                      grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  grpc_server_credentials* const credentials_;
};

}  // namespace

absl::Status CallGate::NoRoom() const {
  refused.Increment();
  return absl::UnavailableError(absl::StrCat(
      "expected at most ", calls.most(),
      " calls at a time, two thirds of them by one caller, got one more; try "
      "again later, or go elsewhere"));
}

std::shared_ptr<grpc::ServerCredentials> GuardedCredentials(
    std::shared_ptr<const Security> security,
    std::shared_ptr<const CallGate> gate, const std::string& address) {
  return std::make_shared<Guarded>(Guard{std::move(security), std::move(gate)},
                                   address);
}

std::vector<std::string> CertificateNames(const grpc::AuthContext& context) {
  std::vector<std::string> names;
  for (const grpc::string_ref& name :
       context.FindPropertyValues(GRPC_X509_SAN_PROPERTY_NAME)) {
    names.emplace_back(name.data(), name.size());
  }
  return names;
}

}  // namespace gshard
