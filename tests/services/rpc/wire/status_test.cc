#include "services/rpc/wire/status.h"

#include <gtest/gtest.h>

#include <string>

#include "services/base/retry_delay.h"

namespace gshard {
namespace {

TEST(StatusTest, EveryCodeSurvives) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code),
                              code == 0 ? "" : "what happened");
    EXPECT_EQ(FromGrpcStatus(ToGrpcStatus(status)), status);
    EXPECT_EQ(FromProtoStatus(ToProtoStatus(status)), status);
    EXPECT_EQ(ToProtoStatus(status).code(), code);
  }
  EXPECT_EQ(ToGrpcStatus(absl::NotFoundError("x")).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST(StatusTest, UnknownNumbersAreUnknown) {
  for (const int code : {-1, 17, 1 << 30}) {
    v1::Status status;
    status.set_code(code);
    status.set_message("m");
    EXPECT_EQ(FromProtoStatus(status), absl::UnknownError("m"));
  }
}

TEST(StatusTest, LongMessagesAreCutBetweenCharacters) {
  // 4095 bytes, then a two-byte character.
  const std::string text = std::string(4095, 'a') + "\xc3\xa9" + "tail";
  EXPECT_EQ(ToGrpcStatus(absl::InternalError(text)).error_message(),
            std::string(4095, 'a'));
  EXPECT_EQ(ToProtoStatus(absl::InternalError(text)).message(),
            std::string(4095, 'a'));
}

TEST(StatusTest, DelaysBeforeARetryTravel) {
  using std::chrono::milliseconds;
  const absl::Status status = WithRetryDelay(
      absl::ResourceExhaustedError("the queue is full"), milliseconds(2345));
  const grpc::Status wire = ToGrpcStatus(status);
  EXPECT_EQ(RetryDelay(FromGrpcStatus(wire)), milliseconds(2345));
  EXPECT_EQ(RetryDelay(FromProtoStatus(ToProtoStatus(status))),
            milliseconds(2345));
  // google.rpc's Status{8, message, {Any{url, RetryInfo{2s 345 ms}}}}.
  EXPECT_EQ(wire.error_details(),
            std::string("\x08\x08\x12\x11the queue is full\x1A\x36\x0A\x28"
                        "type.googleapis.com/google.rpc.RetryInfo"
                        "\x12\x0A\x0A\x08\x08\x02\x10\xC0\x90\xC1\xA4\x01"));
  EXPECT_EQ(RetryDelay(FromGrpcStatus(
                ToGrpcStatus(absl::ResourceExhaustedError("no delay")))),
            std::nullopt);
}

// A peer's malformed details are ignored, and delays out of range are clamped.
TEST(StatusTest, BadDetailsAreIgnored) {
  for (const std::string& details :
       {std::string("rubbish"), std::string("\x1A\xFF", 2),
        std::string(1000, '\x1A')}) {
    const absl::Status status = FromGrpcStatus(
        grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone", details));
    EXPECT_EQ(status, absl::UnavailableError("gone"));
  }
  v1::Status proto;
  proto.set_code(8);
  proto.mutable_retry_delay()->set_seconds(-5);
  EXPECT_EQ(RetryDelay(FromProtoStatus(proto)), std::chrono::milliseconds(0));
  proto.mutable_retry_delay()->set_seconds(int64_t{1} << 62);
  EXPECT_EQ(RetryDelay(FromProtoStatus(proto)), std::chrono::hours(24 * 365));
}

}  // namespace
}  // namespace gshard
