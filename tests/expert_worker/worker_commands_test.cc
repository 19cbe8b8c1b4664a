// WorkerCommands: interruptions that come before the load that they are to end.

#include "expert_worker/worker_commands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "services/rpc/wire/status.h"
#include "tests/expert_worker/load_command.h"
#include "tests/expert_worker/training_model.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

class EarlyInterruptTest : public ::testing::Test {
 protected:
  absl::Status Load() {
    return FromProtoStatus(commands_.Handle(load_).status());
  }
  void ExpectCancelled() {
    EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kCancelled,
                                 HasSubstr("the load was stopped")));
    EXPECT_EQ(sessions_.size(), 0);
  }

  const TrainingJob job_ = SmallJob();
  const v1::Command load_ =
      TrainingLoad("small/1", job_, SplitTraining(job_).segments);
  Metrics metrics_{"expert_worker", "test"};
  WorkerMetrics worker_metrics_{metrics_};
  SessionTable sessions_{kMemory};
  ExpertService service_{&sessions_, ExpertServiceOptions(), worker_metrics_};
  WorkerCommands commands_{&sessions_, &service_, worker_metrics_};
};

TEST_F(EarlyInterruptTest, EndsTheLoadThatFollows) {
  commands_.Interrupt("small/1");
  ExpectCancelled();
  // That load only.
  EXPECT_OK(Load());
}

TEST_F(EarlyInterruptTest, OfAnotherSessionEndsNothing) {
  commands_.Interrupt("small/2");
  EXPECT_OK(Load());
}

TEST_F(EarlyInterruptTest, IsOverOnceTheSessionIsReleased) {
  v1::Command abort, unload;
  abort.mutable_abort_session()->set_session("small/1");
  unload.mutable_unload_session()->set_session("small/1");
  for (const v1::Command& release : {abort, unload}) {
    commands_.Interrupt("small/1");
    EXPECT_OK(FromProtoStatus(commands_.Handle(release).status()));
    EXPECT_OK(Load());
    // With the session still loaded.
    commands_.Interrupt("small/1");
    EXPECT_OK(FromProtoStatus(commands_.Handle(release).status()));
  }
  EXPECT_OK(Load());
}

TEST_F(EarlyInterruptTest, IsOverOnceTheCoordinatorIsLost) {
  commands_.Interrupt("small/1");
  commands_.OnLost();
  EXPECT_OK(Load());
}

}  // namespace
}  // namespace gshard
