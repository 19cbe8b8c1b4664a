// Messages that are late, duplicated or wrong are refused with the right code
// and leave no trace in what is trained.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/config/model_config_proto.h"
#include "services/coordinator/membership/session_plan.h"
#include "services/rpc/client/tensor_transfer.h"
#include "tests/services/coordinator/fake_cluster.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

constexpr absl::StatusCode kPrecondition =
    absl::StatusCode::kFailedPrecondition;

// Well-formed gradients of NaN, which would spoil every sum that they enter.
NamedTensors Poison(const FakeMember& router) {
  NamedTensors gradients;
  const auto model = ModelConfigFromProto(router.last_load().router().model());
  EXPECT_OK(model.status());
  if (!model.ok()) return gradients;
  for (const ParameterSpec& spec : ParametersOf(*model, /*per_expert=*/false)) {
    Tensor tensor = Tensor::Zeros(ElementType::kFloat32, spec.dims);
    for (int64_t i = 0; i < tensor.size(); ++i) {
      tensor.f32()[i] = std::numeric_limits<float>::quiet_NaN();
    }
    gradients[spec.name] = std::move(tensor);
  }
  return gradients;
}

// A push in addition to those of the job, sent when microbatch 1 of step 2 is
// assigned.
struct LatePush {
  std::string name = {};
  std::string session = "demo/1";
  int64_t step = 2;
  int32_t microbatch = 1;
  int32_t attempt = 0;
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string why = {};
};

std::vector<LatePush> LatePushes() {
  return {
      {.name = "an attempt before the job's first",
       .session = "demo/0",
       .code = absl::StatusCode::kNotFound,
       .why = "demo/0"},
      {.name = "an attempt that is to come",
       .session = "demo/2",
       .code = absl::StatusCode::kNotFound,
       .why = "demo/2"},
      {.name = "another job",
       .session = "other/1",
       .code = absl::StatusCode::kNotFound,
       .why = "other/1"},
      {.name = "a step that is committed",
       .step = 1,
       .code = kPrecondition,
       .why = "expected gradients of step 2, got 1"},
      {.name = "a step that is to come",
       .step = 3,
       .code = kPrecondition,
       .why = "expected gradients of step 2, got 3"},
      {.name = "a microbatch that there is not",
       .microbatch = 4,
       .code = absl::StatusCode::kInvalidArgument,
       .why = "expected 0 to 3"},
      {.name = "a negative microbatch",
       .microbatch = -1,
       .code = absl::StatusCode::kInvalidArgument,
       .why = "expected 0 to 3"},
      {.name = "a microbatch's attempt that is to come",
       .attempt = 1,
       .code = kPrecondition,
       .why = "expected attempt 0, got 1"},
      // Repeating a push is no error, because its first answer may be lost.
      {.name = "a microbatch that is done",
       .microbatch = 0,
       .code = absl::StatusCode::kOk,
       .why = ""},
  };
}

absl::Status PushLate(FakeCluster& cluster, const LatePush& late,
                      const NamedTensors& gradients) {
  v1::TensorFrameHeader header;
  header.set_session(late.session);
  header.set_step(late.step);
  header.set_microbatch(late.microbatch);
  header.set_attempt(late.attempt);
  return PushGradients(cluster.channel(), header, gradients,
                       std::chrono::minutes(1));
}

TEST(LateMessagesTest, HostileGradientsAreRefusedAndLeaveNothing) {
  FakeCluster cluster;
  const TrainingJob job = cluster.MakeJob();
  std::atomic<int> pushed{0};
  FakeMember* router = nullptr;
  router = &cluster.AddRouter(
      "r", [&](const v1::Command& c) -> std::optional<v1::CommandReply> {
        if (!c.has_assign_microbatch() || c.assign_microbatch().step() != 2 ||
            c.assign_microbatch().microbatch() != 1) {
          return std::nullopt;
        }
        const NamedTensors poison = Poison(*router);
        for (const LatePush& late : LatePushes()) {
          const absl::Status status = PushLate(cluster, late, poison);
          EXPECT_EQ(status.code(), late.code) << late.name << ": " << status;
          EXPECT_THAT(std::string(status.message()), HasSubstr(late.why))
              << late.name;
          ++pushed;
        }
        return std::nullopt;
      });
  cluster.AddWorker("w");
  ASSERT_OK(cluster.Submit(job));
  const v1::JobProgress last = cluster.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_EQ(pushed, static_cast<int>(LatePushes().size()));
  EXPECT_EQ(last.attempt(), 1);
  ExpectTrained(job, 3);
}

TEST(LateMessagesTest, AnAttemptThatWasHandedOnCountsNoMore) {
  FakeCluster cluster;
  const TrainingJob job = cluster.MakeJob();
  std::atomic<bool> pushed{false};
  FakeMember* router = nullptr;
  router = &cluster.AddRouter(
      "r", [&](const v1::Command& c) -> std::optional<v1::CommandReply> {
        const v1::AssignMicrobatch& assign = c.assign_microbatch();
        if (!c.has_assign_microbatch() || assign.step() != 2 ||
            assign.microbatch() != 2) {
          return std::nullopt;
        }
        if (assign.attempt() == 0) {
          return ReplyWith(absl::UnavailableError("a worker was slow"));
        }
        EXPECT_THAT(
            PushLate(cluster, {.microbatch = 2, .attempt = 0}, Poison(*router)),
            StatusIs(kPrecondition, HasSubstr("handed on")));
        pushed = true;
        return std::nullopt;
      });
  cluster.AddWorker("w");
  ASSERT_OK(cluster.Submit(job));
  const v1::JobProgress last = cluster.Watch("demo").back();
  ASSERT_EQ(last.state(), v1::JOB_STATE_SUCCEEDED) << last.status().message();
  EXPECT_TRUE(pushed);
  ExpectTrained(job, 3);
}

TEST(LateMessagesTest, RepeatedSubmissionsAndCancellationsChangeNothing) {
  FakeCluster cluster;
  const TrainingJob job = cluster.MakeJob();
  ASSERT_OK(cluster.Submit(job));
  EXPECT_THAT(cluster.Submit(job), StatusIs(absl::StatusCode::kAlreadyExists,
                                            HasSubstr("is not over")));
  cluster.AddRouter("r");
  cluster.AddWorker("w");
  ASSERT_EQ(cluster.Watch("demo").back().state(), v1::JOB_STATE_SUCCEEDED);
  ExpectTrained(job, 3);
  for (int i = 0; i < 2; ++i) EXPECT_OK(cluster.Cancel("demo"));
  EXPECT_EQ(cluster.Watch("demo").back().state(), v1::JOB_STATE_SUCCEEDED);
}

}  // namespace
}  // namespace gshard
