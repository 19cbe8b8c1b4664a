#include "services/rpc/status.h"

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace gshard {
namespace {

constexpr size_t kMaxMessageBytes = 4096;

absl::string_view Cut(absl::string_view message) {
  if (message.size() <= kMaxMessageBytes) return message;
  size_t end = kMaxMessageBytes;
  // Bytes 10xxxxxx continue a UTF-8 character.
  while (end > 0 && (message[end] & 0xC0) == 0x80) --end;
  return message.substr(0, end);
}

absl::Status FromCode(int32_t code, absl::string_view message) {
  const bool known = 0 <= code && code <= 16;
  return absl::Status(
      known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
      message);
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      std::string(Cut(status.message())));
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  return FromCode(status.error_code(), status.error_message());
}

v1::Status ToProtoStatus(const absl::Status& status) {
  v1::Status proto;
  if (status.ok()) return proto;
  proto.set_code(static_cast<int32_t>(status.code()));
  proto.set_message(std::string(Cut(status.message())));
  return proto;
}

absl::Status FromProtoStatus(const v1::Status& status) {
  return FromCode(status.code(), status.message());
}

}  // namespace gshard
