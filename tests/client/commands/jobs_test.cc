#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/commands.h"
#include "proto/gshard/v1/coordinator.grpc.pb.h"
#include "tests/client/command_run.h"
#include "tests/client/unix_server.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A coordinator with one job, on its second attempt.
class FakeJobsCoordinator final : public v1::CoordinatorService::Service {
 public:
  const std::string& address() const { return server_.address(); }

  grpc::Status ListJobs(grpc::ServerContext*,
                        const v1::ListJobsRequest* request,
                        v1::ListJobsResponse* response) override {
    if (!request->job().empty() && request->job() != "tiny") {
      return grpc::Status(grpc::StatusCode::NOT_FOUND, "no such job");
    }
    v1::JobInfo* const info = response->add_jobs();
    info->mutable_progress()->set_job("tiny");
    info->mutable_progress()->set_state(v1::JOB_STATE_RECOVERING);
    info->mutable_progress()->set_step(7);
    info->mutable_progress()->set_total_steps(9);
    info->mutable_progress()->set_attempt(2);
    info->mutable_progress()->set_best_validation_step(5);
    info->mutable_progress()->set_best_validation_loss(4.75);
    info->set_submitted_unix_micros(1'600'000'000'000'000);
    if (!request->include_history()) return grpc::Status::OK;
    info->add_history()->set_state(v1::JOB_STATE_QUEUED);
    v1::JobChange* const change = info->add_history();
    change->set_state(v1::JOB_STATE_RECOVERING);
    change->set_unix_micros(1'600'000'001'000'000);
    change->mutable_cause()->set_message("a worker was lost");
    return grpc::Status::OK;
  }

 private:
  UnixServer server_{this, v1::CoordinatorService::service_full_name()};
};

TEST(JobsCommandTest, ListsJobsAndTheirHistory) {
  FakeJobsCoordinator coordinator;
  const auto run = [&](std::vector<std::string> arguments) {
    arguments.push_back("--coordinator=" + coordinator.address());
    return CommandRun(JobsCommand, arguments);
  };
  const CommandRun list = run({});
  ASSERT_OK(list.status);
  EXPECT_THAT(list.out, AllOf(HasSubstr("tiny  recovering   7/9        2  "
                                        "2020-09-13T12:26:40Z  4.7500 at 5"),
                              Not(HasSubstr("queued"))));
  const CommandRun history = run({"tiny", "--history"});
  ASSERT_OK(history.status);
  EXPECT_THAT(history.out,
              AllOf(HasSubstr("queued"), HasSubstr("2020-09-13T12:26:41Z"),
                    HasSubstr("a worker was lost")));
  const CommandRun json = run({"--json"});
  ASSERT_OK(json.status);
  EXPECT_THAT(json.out, HasSubstr("\"JOB_STATE_RECOVERING\""));
  EXPECT_THAT(run({"other"}).status,
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no such job")));
}

}  // namespace
}  // namespace gshard
