// Calls any method, of any arity, with one message of arbitrary bytes.

#ifndef TESTS_INTEGRATION_RAW_CALL_H_
#define TESTS_INTEGRATION_RAW_CALL_H_

#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/wire/status.h"

namespace gshard {

struct RawAnswer {
  absl::Status status;
  std::vector<std::string> messages;
};

// `method` is like "/gshard.v1.TranslationService/Translate". Sends only
// `request`, then reads to the end.
inline RawAnswer CallRaw(const std::shared_ptr<grpc::Channel>& channel,
                         const std::string& method,
                         const std::string& request) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  SetDeadline(context);
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(&context, method, &queue);
  const auto done = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  call->StartCall(nullptr);
  bool open = done();
  const grpc::Slice slice(request);
  if (open) {
    call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
    (void)done();  // a server may end the call without reading
  }
  RawAnswer answer;
  while (open) {
    grpc::ByteBuffer message;
    call->Read(&message, nullptr);
    open = done();
    grpc::Slice bytes;
    if (open && message.DumpToSingleSlice(&bytes).ok()) {
      answer.messages.emplace_back(bytes.begin(), bytes.end());
    }
  }
  grpc::Status status;
  call->Finish(&status, nullptr);
  (void)done();
  answer.status = FromGrpcStatus(status);
  queue.Shutdown();
  while (done()) {
  }
  return answer;
}

}  // namespace gshard

#endif  // TESTS_INTEGRATION_RAW_CALL_H_
