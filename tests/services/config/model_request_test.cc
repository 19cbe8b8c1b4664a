#include "services/config/model_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

TEST(ModelRequestTest, ReadsNameAndCheckpoint) {
  ASSERT_OK_AND_ASSIGN(const ModelRequest model,
                       ParseModelRequest("demo=a/b=c"));
  EXPECT_EQ(model, (ModelRequest{.name = "demo", .checkpoint = "a/b=c"}));
  for (const char* text : {"", "demo", "=path", "demo="}) {
    EXPECT_THAT(ParseModelRequest(text),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("expected NAME=CHECKPOINT")));
  }
}

}  // namespace
}  // namespace gshard
