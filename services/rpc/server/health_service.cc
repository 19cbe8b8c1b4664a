#include "services/rpc/server/health_service.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/method_handler.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/mutex.h"
#include "services/base/share.h"
#include "services/rpc/server/connection_socket.h"

namespace gshard {

// As HealthCheckResponse has them.
enum HealthAnswer { kServing = 1, kNotServing = 2, kNoService = 3 };
namespace {

using google::protobuf::internal::WireFormatLite;

constexpr char kCheck[] = "/grpc.health.v1.Health/Check";
constexpr char kWatch[] = "/grpc.health.v1.Health/Watch";
constexpr size_t kMaxNameBytes = 256;

// Field 1 of a HealthCheckRequest, the service's name. Decoded by hand, since
// Debian has no library for grpc.health.v1's two messages.
std::optional<std::string> ReadService(const grpc::ByteBuffer& request) {
  grpc::Slice bytes;
  if (!request.DumpToSingleSlice(&bytes).ok()) return std::nullopt;
  google::protobuf::io::CodedInputStream input(bytes.begin(),
                                               static_cast<int>(bytes.size()));
  std::string service;
  while (const uint32_t tag = input.ReadTag()) {
    const bool name = tag == WireFormatLite::MakeTag(
                                 1, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
    if (name ? !WireFormatLite::ReadString(&input, &service)
             : !WireFormatLite::SkipField(&input, tag)) {
      return std::nullopt;
    }
  }
  if (!input.ConsumedEntireMessage() || service.size() > kMaxNameBytes) {
    return std::nullopt;
  }
  return service;
}

// Field 1 of a HealthCheckResponse.
grpc::ByteBuffer Response(HealthAnswer answer) {
  const char bytes[] = {0x08, static_cast<char>(answer)};
  const grpc::Slice slice(bytes, sizeof(bytes));
  return grpc::ByteBuffer(&slice, 1);
}

grpc::Status BadRequest() {
  return {grpc::StatusCode::INVALID_ARGUMENT,
          "expected a HealthCheckRequest with a short name"};
}

grpc::Status ShuttingDown() {
  return {grpc::StatusCode::UNAVAILABLE, "the server is shutting down"};
}

}  // namespace

struct HealthService::State {
  HealthAnswer AnswerOf(const std::string& service) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Tell() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Whether another watcher from the host may be added.
  bool HasRoom(const std::string& host) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  Mutex mutex;
  std::map<std::string, bool> serving ABSL_GUARDED_BY(mutex);
  std::set<Watcher*> watchers ABSL_GUARDED_BY(mutex);
  // How many each host has; no value is 0.
  std::map<std::string, int64_t> of_host ABSL_GUARDED_BY(mutex);
  bool shut_down ABSL_GUARDED_BY(mutex) = false;
  bool ended ABSL_GUARDED_BY(mutex) = false;
};

// Sends the current answer, and then every change of it. gRPC runs no reaction
// inside Start...().
class HealthService::Watcher final
    : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  Watcher(std::shared_ptr<State> state, std::string service, std::string host)
      : state_(std::move(state)),
        service_(std::move(service)),
        host_(std::move(host)) {}

  // Without it the watcher is told of nothing.
  void Add() ABSL_EXCLUSIVE_LOCKS_REQUIRED(&State::mutex) {
    state_->watchers.insert(this);
    ++state_->of_host[host_];
    Tell();
  }

  void Tell() ABSL_EXCLUSIVE_LOCKS_REQUIRED(&State::mutex) {
    const HealthAnswer answer = state_->AnswerOf(service_);
    if (writing_ || finished_ || answer == told_) return;
    told_ = answer;
    writing_ = true;
    message_ = Response(answer);
    StartWrite(&message_);
  }

  void End(const grpc::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(&State::mutex) {
    if (finished_) return;
    finished_ = true;
    Finish(status);
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(state_->mutex);
    writing_ = false;
    if (ok) {
      Tell();
    } else {
      End(grpc::Status::CANCELLED);
    }
  }

  void OnCancel() override {
    MutexLock lock(state_->mutex);
    End(grpc::Status::CANCELLED);
  }

  void OnDone() override {
    {
      MutexLock lock(state_->mutex);
      if (state_->watchers.erase(this) > 0) {
        const auto its = state_->of_host.find(host_);
        if (--its->second == 0) state_->of_host.erase(its);
      }
    }
    delete this;
  }

 private:
  const std::shared_ptr<State> state_;
  const std::string service_;
  const std::string host_;
  std::optional<HealthAnswer> told_ ABSL_GUARDED_BY(state_->mutex);
  grpc::ByteBuffer message_ ABSL_GUARDED_BY(state_->mutex);
  bool writing_ ABSL_GUARDED_BY(state_->mutex) = false;
  bool finished_ ABSL_GUARDED_BY(state_->mutex) = false;
};

HealthAnswer HealthService::State::AnswerOf(const std::string& service) const {
  const auto found = serving.find(service);
  if (found == serving.end()) return kNoService;
  return found->second ? kServing : kNotServing;
}

void HealthService::State::Tell() {
  for (Watcher* const watcher : watchers) watcher->Tell();
}

bool HealthService::State::HasRoom(const std::string& host) const {
  const auto found = of_host.find(host);
  // Unix sockets have no hosts; file permissions control their use.
  const bool has_some = found != of_host.end() && !host.empty();
  return IsWithinShare(has_some ? found->second : 0, 1,
                       kMaxWatchers - std::ssize(watchers) - 1);
}

HealthService::HealthService() : state_(std::make_shared<State>()) {
  using grpc::internal::RpcMethod;
  using grpc::internal::RpcServiceMethod;
  for (const char* method : {kCheck, kWatch}) {
    // A placeholder handler, which DeferRead() replaces.
    auto* const added =
        new RpcServiceMethod(method, RpcMethod::BIDI_STREAMING,
                             new grpc::internal::UnknownMethodHandler(""));
    added->SetServerApiType(RpcServiceMethod::ApiType::RAW_CALL_BACK);
    AddMethod(added);
  }
  DeferRead(0, &HealthService::Check);
  DeferRead(1, &HealthService::Watch);
}

void HealthService::Set(const std::string& service, bool serving) {
  MutexLock lock(state_->mutex);
  state_->serving[service] = serving && !state_->shut_down;
  state_->Tell();
}

std::function<bool()> HealthService::AllServing() const {
  return [state = state_] {
    MutexLock lock(state->mutex);
    return !state->serving.empty() &&
           std::all_of(state->serving.begin(), state->serving.end(),
                       [](const auto& service) { return service.second; });
  };
}

void HealthService::Shutdown() {
  MutexLock lock(state_->mutex);
  state_->shut_down = true;
  for (auto& [service, serving] : state_->serving) serving = false;
  state_->Tell();
}

void HealthService::EndWatchers() {
  MutexLock lock(state_->mutex);
  state_->ended = true;
  for (Watcher* const watcher : state_->watchers) watcher->End(ShuttingDown());
}

grpc::ServerUnaryReactor* HealthService::Check(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const std::optional<std::string> service = ReadService(*request);
  if (!service.has_value()) {
    reactor->Finish(BadRequest());
    return reactor;
  }
  MutexLock lock(state_->mutex);
  const HealthAnswer answer = state_->AnswerOf(*service);
  *response = Response(answer);
  reactor->Finish(answer == kNoService
                      ? grpc::Status(grpc::StatusCode::NOT_FOUND,
                                     "there is no such service")
                      : grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* HealthService::Watch(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  const std::optional<std::string> service = ReadService(*request);
  const std::string host = HostOfPeer(context->peer());
  auto* const watcher = new Watcher(state_, service.value_or(""), host);
  MutexLock lock(state_->mutex);
  if (!service.has_value()) {
    watcher->End(BadRequest());
  } else if (state_->ended) {
    watcher->End(ShuttingDown());
  } else if (!state_->HasRoom(host)) {
    watcher->End({grpc::StatusCode::RESOURCE_EXHAUSTED,
                  absl::StrCat("expected at most ", kMaxWatchers,
                               " watchers, two thirds of them of one host")});
  } else {
    watcher->Add();
  }
  return watcher;
}

}  // namespace gshard
