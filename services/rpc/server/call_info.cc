#include "services/rpc/server/call_info.h"

#include <grpc/grpc.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/interceptor.h>

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/base/log_budget.h"
#include "services/rpc/security/method_roles.h"
#include "services/rpc/server/raw_service.h"
#include "services/rpc/wire/status.h"

namespace gshard {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::InterceptorBatchMethods;
using grpc::experimental::ServerRpcInfo;
using Metadata = std::multimap<grpc::string_ref, grpc::string_ref>;
using Clock = std::chrono::steady_clock;

constexpr char kAuthorization[] = "authorization";
constexpr char kRequestId[] = "x-request-id";
constexpr char kTraceparent[] = "traceparent";
constexpr char kTracestate[] = "tracestate";

// Keys under which the results are added to the metadata that the handler sees;
// gRPC has no other place for data of one call.
constexpr char kCaller[] = "gshard-caller";
constexpr char kGrants[] = "gshard-grants";
constexpr char kSpan[] = "gshard-span";

// The value if there is exactly one, else empty.
std::string One(const Metadata& metadata, const char* key) {
  const auto range = metadata.equal_range(key);
  if (range.first == range.second || std::next(range.first) != range.second) {
    return "";
  }
  return std::string(range.first->second.data(), range.first->second.size());
}

OpenSpan BeginSpan(const Metadata& metadata, const Tracer& tracer) {
  return tracer.Serve(One(metadata, kTraceparent), One(metadata, kTracestate),
                      "");
}

CallInfo FromClient(const Metadata& metadata, const OpenSpan& span) {
  CallInfo info{.caller = {.name = kAnonymous, .grants = {}},
                .request_id = One(metadata, kRequestId),
                .trace = span.context()};
  if (!IsRequestId(info.request_id)) info.request_id = NewRequestId();
  return info;
}

Caller FindCaller(const Security& security, const Metadata& metadata,
                  const grpc::ServerContextBase& context) {
  Credentials credentials;
  if (metadata.count(kAuthorization) > 0) {
    credentials.authorization = One(metadata, kAuthorization);
  }
  credentials.certificate_names = CertificateNames(*context.auth_context());
  // The guard has admitted the call, but this may find no caller: an open
  // method needs none, and the file of callers may have changed since.
  absl::StatusOr<Caller> caller = security.Identify(credentials);
  return caller.ok() ? *std::move(caller) : Caller{kAnonymous, {}};
}

// Whether the server has failed, not the caller.
bool IsOwnFailure(absl::StatusCode code) {
  return code == absl::StatusCode::kInternal ||
         code == absl::StatusCode::kUnknown ||
         code == absl::StatusCode::kDataLoss ||
         code == absl::StatusCode::kUnavailable ||
         code == absl::StatusCode::kDeadlineExceeded;
}

// Budgets by method, so that busy methods do not crowd out others, nor calls
// that succeed those that fail.
LogBudget& BudgetOf(absl::string_view method, bool failure) {
  constexpr size_t kBudgets = 64;
  static std::deque<LogBudget>& budgets = *[] {
    auto* const made = new std::deque<LogBudget>();
    for (size_t i = 0; i < 2 * kBudgets; ++i) {
      made->emplace_back(kCallLinesPerSecond);
    }
    return made;
  }();
  const size_t hash =
      std::hash<std::string_view>()({method.data(), method.size()});
  return budgets[hash % kBudgets + (failure ? kBudgets : 0)];
}

// The guard admits no method without an entry.
const MethodAccess& AccessOf(const char* method) {
  static const MethodAccess& none = *new MethodAccess;
  const MethodAccess* const access = FindMethodAccess(method);
  return access == nullptr ? none : *access;
}

// The interceptor of one call.
class CallInfoInterceptor final : public grpc::experimental::Interceptor {
 public:
  CallInfoInterceptor(std::shared_ptr<const Security> security,
                      std::shared_ptr<CallGate> gate, bool raw,
                      const Tracer& tracer, ServerRpcInfo* rpc)
      : security_(std::move(security)),
        gate_(std::move(gate)),
        rpc_(rpc),
        access_(AccessOf(rpc->method())),
        raw_(raw),
        tracer_(access_.open ? Tracer() : tracer) {}
  ~CallInfoInterceptor() override {
    if (place_ == Place::kTaken) gate_->calls.End(info_.caller.name);
  }

  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            InterceptionHookPoints::POST_RECV_INITIAL_METADATA)) {
      Begin(*methods->GetRecvInitialMetadata());
    }
    if (methods->QueryInterceptionHookPoint(
            InterceptionHookPoints::POST_RECV_MESSAGE) &&
        methods->GetRecvMessage() != nullptr) {
      has_message_ = true;
      Count();
      if (place_ == Place::kRefused && raw_) {
        static_cast<grpc::ByteBuffer*>(methods->GetRecvMessage())->Clear();
      }
    }
    if (methods->QueryInterceptionHookPoint(
            InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->emplace(kRequestId, info_.request_id);
    }
    if (methods->QueryInterceptionHookPoint(
            InterceptionHookPoints::PRE_SEND_STATUS)) {
      if (raw_ && access_.one_message && !has_message_) {
        // gRPC would call it UNIMPLEMENTED.
        methods->ModifySendStatus(ToGrpcStatus(NoRequest()));
      }
      End(FromGrpcStatus(methods->GetSendStatus()));
    }
    methods->Proceed();
  }

 private:
  // In the gate's count.
  enum class Place { kNone, kTaken, kRefused };

  // The guard found room, but any number of calls may have done so at once.
  void Count() {
    if (access_.open || place_ != Place::kNone) return;
    place_ = Place::kTaken;
    if (access_.for_members()) return gate_->calls.Begin(info_.caller.name);
    if (gate_->calls.TryBegin(info_.caller.name)) return;
    place_ = Place::kRefused;
    grpc_call_cancel_with_status(
        rpc_->server_context()->c_call(), GRPC_STATUS_UNAVAILABLE,
        absl::StrCat(gate_->NoRoom().message(), " (request ", info_.request_id,
                     ")")
            .c_str(),
        nullptr);
  }

  void Begin(Metadata& metadata) {
    span_ = BeginSpan(metadata, tracer_);
    span_.SetMethod(rpc_->method());
    info_ = FromClient(metadata, span_);
    info_.caller = FindCaller(*security_, metadata, *rpc_->server_context());
    grants_ = GrantsText(info_.caller.grants);
    traceparent_ = info_.trace.Traceparent();
    for (const char* key :
         {kAuthorization, kRequestId, kTraceparent, kCaller, kGrants, kSpan}) {
      metadata.erase(key);
    }
    if (info_.trace.state.empty()) metadata.erase(kTracestate);
    metadata.emplace(kCaller, info_.caller.name);
    metadata.emplace(kGrants, grants_);
    metadata.emplace(kRequestId, info_.request_id);
    metadata.emplace(kSpan, traceparent_);
    // Without room the request need not come.
    if (!access_.one_message || !gate_->calls.HasRoom(info_.caller.name)) {
      Count();
    }
  }

  // Why the call has ended before its request came. gRPC does not tell.
  absl::Status NoRequest() const {
    const auto took = Clock::now() - start_;
    // The client's deadline is known here rounded up, by a tenth at most, and
    // the client's word that it has passed comes before.
    const auto deadline = rpc_->server_context()->deadline();
    const auto left = deadline - std::chrono::system_clock::now();
    const bool is_set =
        deadline != std::chrono::system_clock::time_point::max();
    if (took >= gate_->request_time || (is_set && left <= took / 8)) {
      return absl::DeadlineExceededError("the request did not come in time");
    }
    return absl::CancelledError("the call ended before its request came");
  }

  void End(absl::Status status) {
    if (access_.open) return;  // health probes are not logged
    if (place_ == Place::kRefused) {
      status = absl::UnavailableError("no room for another call");
    }
    LogCall(rpc_->method(), info_, status, Clock::now() - start_, std::nullopt,
            gate_->draining);
    span_.End(absl::Status(status.code(), ""));
  }

  const std::shared_ptr<const Security> security_;
  const std::shared_ptr<CallGate> gate_;
  ServerRpcInfo* const rpc_;
  const MethodAccess& access_;
  const bool raw_;
  const Tracer tracer_;
  Place place_ = Place::kNone;
  bool has_message_ = false;
  const Clock::time_point start_ = Clock::now();
  CallInfo info_;            // referenced by the handler's metadata
  std::string grants_;       // likewise
  std::string traceparent_;  // likewise
  OpenSpan span_;
};

class CallInfoInterceptorFactory final
    : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  CallInfoInterceptorFactory(std::shared_ptr<const Security> security,
                             std::shared_ptr<CallGate> gate,
                             std::set<std::string> raw_services, Tracer tracer)
      : security_(std::move(security)),
        gate_(std::move(gate)),
        raw_services_(std::move(raw_services)),
        tracer_(std::move(tracer)) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(
      ServerRpcInfo* rpc) override {
    const bool raw = raw_services_.contains(ServiceOf(rpc->method()));
    return new CallInfoInterceptor(security_, gate_, raw, tracer_, rpc);
  }

 private:
  const std::shared_ptr<const Security> security_;
  const std::shared_ptr<CallGate> gate_;
  const std::set<std::string> raw_services_;
  const Tracer tracer_;
};

}  // namespace

void LogCall(absl::string_view method, const CallInfo& info,
             const absl::Status& status, Clock::duration took,
             std::optional<uint64_t> message_id, bool draining) {
  const bool failure =
      IsOwnFailure(status.code()) && !(draining && absl::IsUnavailable(status));
  if (message_id.has_value() && !failure) return;
  const auto left_out = BudgetOf(method, failure).Take();
  if (!left_out.has_value()) return;
  const auto micros =
      std::chrono::duration_cast<std::chrono::microseconds>(took).count();
  // The thread may be in the log scope of a batch of other requests, whose
  // traces are not this call's.
  const LogScope own({{"method", method},
                      {"code", absl::StatusCodeToString(status.code())},
                      {"ms", static_cast<double>(micros) / 1000},
                      {"request_id", info.request_id},
                      {"trace_id", info.trace.trace_id},
                      {"span_id", info.trace.span_id},
                      {"caller", info.caller.name},
                      {"lines_left_out", *left_out}});
  if (message_id.has_value()) {
    LogWarning("a message of a stream failed",
               {{"message_id", *message_id}, {"reason", status.message()}});
  } else if (failure) {
    LogWarning("call", {{"reason", status.message()}});
  } else {
    LogInfo("call");
  }
}

CallInfo CallInfoOf(const grpc::ServerContextBase& context) {
  const Metadata& metadata = context.client_metadata();
  const TraceContext span = ParseTraceparent(One(metadata, kSpan));
  // On a server without the interceptor, the client could have set all of the
  // keys.
  if (span.trace_id.empty()) {
    return FromClient(metadata, BeginSpan(metadata, Tracer()));
  }
  absl::StatusOr<Grants> grants = ParseGrants(One(metadata, kGrants));
  CallInfo info{.caller = {One(metadata, kCaller),
                           grants.ok() ? *std::move(grants) : Grants()},
                .request_id = One(metadata, kRequestId),
                .trace = span};
  info.trace.state = One(metadata, kTracestate);
  return info;
}

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>
CallInfoFactory(std::shared_ptr<const Security> security,
                std::shared_ptr<CallGate> gate,
                std::set<std::string> raw_services, Tracer tracer) {
  return std::make_unique<CallInfoInterceptorFactory>(
      std::move(security), std::move(gate), std::move(raw_services),
      std::move(tracer));
}

}  // namespace gshard
