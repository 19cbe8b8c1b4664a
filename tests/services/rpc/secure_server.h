// A server with security options, and calls to it with those of a client.

#ifndef TESTS_SERVICES_RPC_SECURE_SERVER_H_
#define TESTS_SERVICES_RPC_SECURE_SERVER_H_

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "proto/gshard/v1/translation.grpc.pb.h"
#include "services/base/status_macros.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/server/call_info.h"
#include "services/rpc/server/server.h"
#include "services/rpc/wire/status.h"
#include "services/rpc/wire/trace_scope.h"
#include "tests/testing/status_matchers.h"

namespace gshard {

// Yields until `condition` holds, for at most 60 seconds.
template <typename Condition>
bool Eventually(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

// Finishes on a thread that works for other calls, too. It waits for the
// initial metadata, because gRPC would finish an earlier call on a thread of
// its own.
class BatchedCall final : public grpc::ServerUnaryReactor {
 public:
  BatchedCall() { StartSendInitialMetadata(); }
  void OnSendInitialMetadataDone(bool) override {
    const TraceScope others({NewTrace(), NewTrace()});
    Finish(grpc::Status::OK);
  }
  void OnDone() override { delete this; }
};

// Answers with the request's model; "fail" is the caller's error, "break" one
// of the server, "batched" takes a BatchedCall. Records the CallInfo of the
// last call.
class InfoService final
    : public v1::TranslationService::WithCallbackMethod_Translate<
          v1::TranslationService::Service> {
 public:
  grpc::ServerUnaryReactor* Translate(
      grpc::CallbackServerContext* context, const v1::TranslateRequest* request,
      v1::TranslateResponse* response) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      last_ = CallInfoOf(*context);
      shows_authorization_ =
          context->client_metadata().count("authorization") > 0;
      ++calls_;
    }
    response->set_model(request->model());
    if (request->model() == "batched") return new BatchedCall();
    auto* const reactor = context->DefaultReactor();
    grpc::Status status;
    if (request->model() == "fail") {
      status = grpc::Status(grpc::StatusCode::NOT_FOUND, "no model");
    } else if (request->model() == "break") {
      status = grpc::Status(grpc::StatusCode::INTERNAL, "the gate is ajar");
    }
    reactor->Finish(status);
    return reactor;
  }

  CallInfo last() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return last_;
  }
  bool shows_authorization() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return shows_authorization_;
  }
  int calls() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return calls_;
  }

 private:
  mutable std::mutex mutex_;
  CallInfo last_;
  bool shows_authorization_ = false;
  int calls_ = 0;
};

class SecureServer {
 public:
  explicit SecureServer(const SecurityOptions& options,
                        const std::string& address = "127.0.0.1:0",
                        Tracer tracer = {})
      : shell_({.address = address}) {
    shell_.UseTracer(std::move(tracer));
    auto security = Security::CreateForServer(options, address);
    EXPECT_TRUE(security.ok()) << security.status();
    if (!security.ok()) return;
    security_ = *security;
    shell_.UseSecurity(security_);
    shell_.AddService(&service_, v1::TranslationService::service_full_name());
    EXPECT_OK(shell_.Start());
  }

  const std::string& address() const { return shell_.address(); }
  InfoService& service() { return service_; }
  Security& security() { return *security_; }

  absl::StatusOr<std::shared_ptr<grpc::Channel>> Channel(
      const SecurityOptions& options) const {
    ASSIGN_OR_RETURN(auto security, Security::CreateForClient(options));
    return CreateChannel(address(), {.security = std::move(security)});
  }

  // A call over a connection of its own.
  absl::Status Call(const SecurityOptions& options) const {
    ASSIGN_OR_RETURN(const auto channel, Channel(options));
    return CallOn(channel);
  }

  static absl::Status CallOn(const std::shared_ptr<grpc::Channel>& channel,
                             const std::string& model = "m") {
    grpc::ClientContext context;
    return CallWith(channel, context, model);
  }
  static absl::Status CallWith(const std::shared_ptr<grpc::Channel>& channel,
                               grpc::ClientContext& context,
                               const std::string& model = "m") {
    SetDeadline(context, std::chrono::minutes(1));
    v1::TranslateRequest request;
    request.set_model(model);
    v1::TranslateResponse response;
    return FromGrpcStatus(v1::TranslationService::NewStub(channel)->Translate(
        &context, request, &response));
  }

 private:
  InfoService service_;
  std::shared_ptr<Security> security_;
  ServerShell shell_;
};

}  // namespace gshard

#endif  // TESTS_SERVICES_RPC_SECURE_SERVER_H_
