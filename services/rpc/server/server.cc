#include "services/rpc/server/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/impl/server_builder_plugin.h>
#include <grpcpp/resource_quota.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "services/base/check.h"
#include "services/base/log.h"
#include "services/base/machine_limits.h"
#include "services/base/status_macros.h"
#include "services/rpc/server/call_info.h"
#include "services/rpc/server/call_watch.h"
#include "services/rpc/server/listening_sockets.h"
#include "services/rpc/server/raw_service.h"

namespace gshard {
namespace {

using std::chrono::milliseconds;

// Timeout of TLS handshakes, and of the first bytes of a connection without
// TLS.
constexpr int kHandshakeTimeoutMs = 20'000;

constexpr char kHealthServiceName[] = "grpc.health.v1.Health";

// Pause between refusing calls and ending the server.
constexpr milliseconds kSettleTime{20};

// Makes room for a socket at `path`: removes the one that a dead server left
// behind.
absl::Status ClearSocketPath(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) {
    if (errno != ENOENT) {
      return absl::FailedPreconditionError(
          absl::StrCat("cannot look at ", path, ": ", strerror(errno)));
    }
    const std::string parent = std::filesystem::path(path).parent_path();
    const std::string folder = parent.empty() ? "." : parent;
    if (access(folder.c_str(), W_OK | X_OK) == 0) return absl::OkStatus();
    // gRPC would not say why it cannot listen.
    return absl::FailedPreconditionError(absl::StrCat(
        "cannot make the socket ", path, ": ", folder, ": ", strerror(errno)));
  }
  if (!S_ISSOCK(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " exists and is not a socket"));
  }
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  // Non-blocking: a server that does not accept may still be alive.
  const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
  if (probe < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot make a socket: ", strerror(errno)));
  }
  const int result =
      connect(probe, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  const int error = result == 0 ? 0 : errno;
  close(probe);
  if (error == 0 || error == EAGAIN || error == EINPROGRESS) {
    return absl::AlreadyExistsError(
        absl::StrCat("another server is listening on unix:", path));
  }
  if (error != ECONNREFUSED) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot reach the socket ", path, ": ", strerror(error)));
  }
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    return absl::FailedPreconditionError(absl::StrCat(
        "cannot remove the stale socket ", path, ": ", strerror(errno)));
  }
  return absl::OkStatus();
}

absl::Status Validate(const ServerOptions& options) {
  if (options.max_message_bytes < 1024 ||
      options.max_message_bytes > size_t{INT32_MAX}) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_message_bytes must be from 1024 to ", INT32_MAX,
                     ", got ", options.max_message_bytes));
  }
  if (options.max_calls_per_connection < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_calls_per_connection must be at least 1, got ",
                     options.max_calls_per_connection));
  }
  if (options.max_calls < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_calls must be at least 1, got ", options.max_calls));
  }
  if (options.silence < std::chrono::milliseconds(100) ||
      options.silence > std::chrono::hours(1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("silence must be from 100 ms to an hour, got ",
                     options.silence.count(), " ms"));
  }
  for (const milliseconds time :
       {options.max_connection_idle, options.max_connection_age}) {
    if (time != milliseconds(0) && time < milliseconds(1000)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "max_connection_idle and max_connection_age must be 0 or at least "
          "1 s, got ",
          time.count(), " ms"));
    }
  }
  if (options.limits.connections < 1 || options.limits.peer_connections < 1 ||
      options.limits.held_bytes < 64 << 10 ||
      options.limits.request_time <= milliseconds(0)) {
    return absl::InvalidArgumentError(
        "limits must be at least a connection, 64 KiB and more than no time");
  }
  if (options.address.empty()) return absl::OkStatus();
  return ValidateAddress(options.address, /*lowest_port=*/0);
}

void SetArguments(const ServerOptions& options, grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  builder.SetMaxSendMessageSize(static_cast<int>(options.max_message_bytes));
  // gRPC checks sizes before it decompresses messages: a megabyte that
  // compresses well would become a gigabyte. With compression disabled,
  // compressed messages get UNIMPLEMENTED and are never decompressed.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                             options.max_calls_per_connection);
  // With a shared port the kernel would distribute connections at random.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Allow the pings of CreateChannel(), and send pings, so that calls of a
  // vanished client end.
  const int silence = static_cast<int>(options.silence.count());
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, silence / 5);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, silence);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(
      GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10);
  // gRPC widens the window of a message that is being read to its size, so a
  // small window costs large messages next to nothing.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES,
                             static_cast<int>(ConnectionMeter::kStreamWindow));
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // would widen it
  // The last resort if members send more than fits into memory: gRPC then ends
  // calls of any caller, which is better than losing the process.
  grpc::ResourceQuota quota("gshard");
  quota.Resize(static_cast<size_t>(MemoryLimit() / 4 * 3));
  builder.SetResourceQuota(quota);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                             kHandshakeTimeoutMs);
  const auto set_time = [&builder](const char* name, milliseconds time) {
    if (time == milliseconds(0)) return;
    constexpr milliseconds kMost{INT32_MAX};
    builder.AddChannelArgument(name,
                               static_cast<int>(std::min(time, kMost).count()));
  };
  // Calls outlive the age limit of their connection: gRPC's grace is infinite.
  set_time(GRPC_ARG_MAX_CONNECTION_IDLE_MS, options.max_connection_idle);
  set_time(GRPC_ARG_MAX_CONNECTION_AGE_MS, options.max_connection_age);
}

// Sets reflection by one server's options. Linking gRPC's reflection library
// enables it for all servers of the process.
class ReflectionOption final : public grpc::ServerBuilderOption {
 public:
  explicit ReflectionOption(bool on) : on_(on) {}

  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>*
                         plugins) override {
    auto reflection =
        std::make_unique<grpc::reflection::ProtoServerReflectionPlugin>();
    std::erase_if(*plugins, [&](const auto& plugin) {
      return plugin->name() == reflection->name();
    });
    if (on_) plugins->push_back(std::move(reflection));
  }

 private:
  const bool on_;
};

}  // namespace

ServerShell::ServerShell(ServerOptions options)
    : options_(std::move(options)),
      gate_(std::make_shared<CallGate>(options_.max_calls, options_.limits)) {
  KeepGrpcRunning();
}

ServerShell::~ServerShell() { Drain(milliseconds(0)); }

void ServerShell::AddService(grpc::Service* service, absl::string_view name) {
  services_.push_back(service);
  service_names_.emplace_back(name);
}

void ServerShell::UseSecurity(std::shared_ptr<const Security> security) {
  security_ = std::move(security);
}

void ServerShell::AddMetrics(Metrics& metrics) {
  metrics.AddCallbackGauge(
      "gshard_server_calls", "Calls under way, streams included.",
      [gate = gate_] { return static_cast<double>(gate->calls.calls()); });
  metrics.AddCallbackGauge(
      "gshard_ready",
      "1 if health says SERVING of all services: it can do its work.",
      [all = health_.AllServing()] { return all() ? 1.0 : 0.0; });
  gate_->refused = metrics.AddCounter(
      "gshard_server_calls_refused_total",
      "Calls refused, for as many were under way as may be.");
  gate_->watch->AddMetrics(metrics);
}

void ServerShell::OnDrain(std::function<void()> callback) {
  drain_callbacks_.push_back(std::move(callback));
}

absl::Status ServerShell::Start() {
  CHECK(server_ == nullptr);
  RETURN_IF_ERROR(Validate(options_));
  if (security_ == nullptr) {
    ASSIGN_OR_RETURN(security_,
                     Security::CreateForServer({}, options_.address));
  }
  RETURN_IF_ERROR(
      ValidateServerSecurity(security_->options(), options_.address));
  absl::string_view path = options_.address;
  if (absl::ConsumePrefix(&path, "unix:")) {
    if (absl::StartsWith(path, "//")) path.remove_prefix(2);
    RETURN_IF_ERROR(ClearSocketPath(std::string(path)));
  }

  // gRPC reads this flag once, when a server is built.
  grpc::EnableDefaultHealthCheckService(false);
  grpc::ServerBuilder builder;
  builder.SetOption(std::make_unique<ReflectionOption>(options_.reflection));
  SetArguments(options_, builder);
  const bool tcp =
      !options_.address.empty() && !absl::StartsWith(options_.address, "unix:");
  ListeningSockets sockets = {.descriptors = {}, .port = 0};
  if (!options_.address.empty()) {
    const auto credentials =
        GuardedCredentials(security_, gate_, options_.address);
    if (tcp) {
      ASSIGN_OR_RETURN(sockets, ListenAt(options_.address, options_.silence));
      using grpc::ServerBuilder;
      acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
          ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
          credentials);
    } else {
      builder.AddListeningPort(options_.address, credentials);
    }
  }
  std::set<std::string> raw_services = {kHealthServiceName};
  builder.RegisterService(&health_);
  for (size_t i = 0; i < services_.size(); ++i) {
    builder.RegisterService(services_[i]);
    if (dynamic_cast<const RawMethods*>(services_[i]) != nullptr) {
      raw_services.insert(service_names_[i]);
    }
  }
  std::vector<
      std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>
      interceptors;
  // What is received passes the last one first: the watch counts the headers
  // before CallInfo takes some away.
  interceptors.push_back(
      CallInfoFactory(security_, gate_, raw_services, tracer_));
  interceptors.push_back(
      CallWatchFactory(gate_->watch, std::move(raw_services)));
  builder.experimental().SetInterceptorCreators(std::move(interceptors));
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) {
    for (const int descriptor : sockets.descriptors) close(descriptor);
    return absl::UnavailableError(
        absl::StrCat("cannot listen on \"", options_.address, "\""));
  }
  RETURN_IF_ERROR(gate_->watch->Start(
      std::move(sockets.descriptors), [this](int descriptor) {
        grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters
            connection;
        connection.fd = descriptor;
        acceptor_->HandleNewConnection(&connection);
      }));
  address_ = options_.address;
  if (tcp) {
    address_ = absl::StrCat(address_.substr(0, address_.rfind(':')), ":",
                            sockets.port);
  }
  {
    MutexLock lock(mutex_);
    state_ = kServing;
  }
  SetReady(false);
  return absl::OkStatus();
}

void ServerShell::SetReady(bool ready) {
  MutexLock lock(mutex_);
  if (state_ != kServing) return;
  health_.Set("", ready);
  for (const std::string& name : service_names_) {
    if (own_readiness_.count(name) == 0) health_.Set(name, ready);
  }
}

void ServerShell::SetServiceReady(absl::string_view service, bool ready) {
  MutexLock lock(mutex_);
  if (state_ != kServing) return;
  const std::string name(service);
  own_readiness_.insert(name);
  health_.Set(name, ready);
}

std::shared_ptr<grpc::Channel> ServerShell::InProcessChannel() {
  CHECK(server_ != nullptr);
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(
      static_cast<int>(options_.max_message_bytes));
  arguments.SetMaxSendMessageSize(static_cast<int>(options_.max_message_bytes));
  return server_->InProcessChannel(arguments);
}

void ServerShell::EndReadiness() {
  MutexLock lock(mutex_);
  // Later calls of SetReady() have no effect: health never turns back.
  if (state_ == kServing) health_.Shutdown();
}

void ServerShell::Drain(milliseconds grace, milliseconds delay) {
  {
    MutexLock lock(mutex_);
    if (state_ == kIdle) return;
    if (state_ != kServing) {
      drained_.Wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return state_ == kDrained;
      });
      return;
    }
    state_ = kDraining;
    gate_->draining = true;
    health_.Shutdown();
  }
  LogInfo("draining", {{"address", address_},
                       {"delay_ms", delay.count()},
                       {"grace_ms", grace.count()}});
  // Nothing to wait for but time.
  std::this_thread::sleep_for(delay);
  const auto deadline = std::chrono::system_clock::now() + grace;
  for (const auto& callback : drain_callbacks_) callback();
  gate_->closed = true;
  // By then, calls that have passed the guard have begun.
  if (!address_.empty()) std::this_thread::sleep_for(kSettleTime);
  gate_->watch->StopAccepting();
  health_.EndWatchers();
  server_->Shutdown(deadline);
  gate_->watch->Stop();
  MutexLock lock(mutex_);
  state_ = kDrained;
  drained_.NotifyAll();
}

void ServerShell::Wait() {
  MutexLock lock(mutex_);
  drained_.Wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return state_ == kDrained;
  });
}

}  // namespace gshard
