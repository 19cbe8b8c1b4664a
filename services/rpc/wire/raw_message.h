// Encoding and decoding of messages for raw methods. gRPC's own decoding would
// hide the reason for a failure: a unary call with malformed bytes gets
// UNIMPLEMENTED, and a stream looks half-closed.

#ifndef SERVICES_RPC_WIRE_RAW_MESSAGE_H_
#define SERVICES_RPC_WIRE_RAW_MESSAGE_H_

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace gshard {

// Errors: InvalidArgument.
template <typename Message>
absl::StatusOr<Message> ParseRaw(grpc::ByteBuffer buffer) {
  Message message;
  grpc::ProtoBufferReader reader(&buffer);
  if (!reader.status().ok() || !message.ParseFromZeroCopyStream(&reader)) {
    return absl::InvalidArgumentError(
        absl::StrCat("not a valid ", message.GetTypeName()));
  }
  return message;
}

template <typename Message>
grpc::ByteBuffer SerializeRaw(const Message& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace gshard

#endif  // SERVICES_RPC_WIRE_RAW_MESSAGE_H_
