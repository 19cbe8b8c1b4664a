#include "services/rpc/status.h"

#include <gtest/gtest.h>

#include <string>

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
  // 4095 bytes, then a character of two.
  const std::string text = std::string(4095, 'a') + "\xc3\xa9" + "tail";
  EXPECT_EQ(ToGrpcStatus(absl::InternalError(text)).error_message(),
            std::string(4095, 'a'));
  EXPECT_EQ(ToProtoStatus(absl::InternalError(text)).message(),
            std::string(4095, 'a'));
}

}  // namespace
}  // namespace gshard
