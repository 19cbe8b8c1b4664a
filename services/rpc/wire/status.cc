#include "services/rpc/wire/status.h"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "proto/gshard/v1/error_details.pb.h"
#include "services/base/retry_delay.h"

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

constexpr char kRetryInfo[] = "type.googleapis.com/google.rpc.RetryInfo";

using google::protobuf::Duration;
using std::chrono::milliseconds;

Duration ToProto(milliseconds delay) {
  Duration proto;
  proto.set_seconds(delay.count() / 1000);
  proto.set_nanos(static_cast<int32_t>(delay.count() % 1000 * 1'000'000));
  return proto;
}

// Clamps a peer's delay to [0, one year].
milliseconds FromProto(const Duration& delay) {
  constexpr int64_t kMost = 365 * 86400;
  if (delay.seconds() < 0 || delay.nanos() < 0) return milliseconds(0);
  if (delay.seconds() >= kMost) return std::chrono::seconds(kMost);
  return std::chrono::seconds(delay.seconds()) +
         milliseconds(delay.nanos() % 1'000'000'000 / 1'000'000);
}

// The serialized status details; empty if there is no delay.
std::string DetailsOf(const absl::Status& status) {
  const std::optional<milliseconds> delay = RetryDelay(status);
  if (!delay.has_value()) return "";
  v1::RetryInfo retry;
  *retry.mutable_retry_delay() = ToProto(*delay);
  v1::RichStatus rich;
  rich.set_code(static_cast<int32_t>(status.code()));
  rich.set_message(std::string(Cut(status.message())));
  google::protobuf::Any* const detail = rich.add_details();
  detail->set_type_url(kRetryInfo);
  detail->set_value(retry.SerializeAsString());
  return rich.SerializeAsString();
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      std::string(Cut(status.message())), DetailsOf(status));
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  const absl::Status plain =
      FromCode(status.error_code(), status.error_message());
  v1::RichStatus rich;
  if (plain.ok() || !rich.ParseFromString(status.error_details())) return plain;
  for (const google::protobuf::Any& detail : rich.details()) {
    v1::RetryInfo retry;
    if (detail.type_url() == kRetryInfo &&
        retry.ParseFromString(detail.value())) {
      return WithRetryDelay(plain, FromProto(retry.retry_delay()));
    }
  }
  return plain;
}

v1::Status ToProtoStatus(const absl::Status& status) {
  v1::Status proto;
  if (status.ok()) return proto;
  proto.set_code(static_cast<int32_t>(status.code()));
  proto.set_message(std::string(Cut(status.message())));
  const std::optional<milliseconds> delay = RetryDelay(status);
  if (delay.has_value()) *proto.mutable_retry_delay() = ToProto(*delay);
  return proto;
}

absl::Status FromProtoStatus(const v1::Status& status) {
  const absl::Status plain = FromCode(status.code(), status.message());
  return status.has_retry_delay()
             ? WithRetryDelay(plain, FromProto(status.retry_delay()))
             : plain;
}

}  // namespace gshard
