#include "services/rpc/process/command_results.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "services/rpc/wire/status.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

// The line that Outcome() logs; the reply has the status.
std::string LineOf(const v1::Command& command, const absl::Status& status) {
  ::testing::internal::CaptureStderr();
  const v1::CommandReply reply = Outcome(command, status, {});
  EXPECT_EQ(FromProtoStatus(reply.status()), status);
  return ::testing::internal::GetCapturedStderr();
}

TEST(CommandResultsTest, WhatTheNextCoordinatorFindsIsNoFailure) {
  v1::Command load;
  load.mutable_load_session()->set_session("m@1");
  EXPECT_THAT(LineOf(load, absl::AlreadyExistsError("m@1 is loaded")),
              HasSubstr("\"severity\":\"INFO\",\"message\":\"the session is "
                        "loaded already\",\"session\":\"m@1\""));
  EXPECT_THAT(LineOf(load, absl::NotFoundError("no checkpoint")),
              HasSubstr("\"severity\":\"WARNING\",\"message\":\"a command "
                        "failed\",\"session\":\"m@1\""));
  v1::Command step;
  step.mutable_commit_step()->set_session("job");
  EXPECT_THAT(LineOf(step, absl::AlreadyExistsError("step 3")),
              HasSubstr("\"severity\":\"WARNING\""));
}

}  // namespace
}  // namespace gshard
