// Training sessions that a worker refuses to create.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "expert_worker/training_worker_session.h"
#include "services/graph/text.h"
#include "tests/expert_worker/session_cluster.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class RefusalTest : public ::testing::Test {
 protected:
  RefusalTest()
      : job_(SmallJob()),
        roles_(SplitTraining(job_)),
        spec_(TrainingSpec(job_, roles_.segments, {0, 2})) {}

  void ExpectInvalid(const char* why) {
    EXPECT_THAT(WorkerSession::Create(spec_, kMemory),
                StatusIs(kInvalid, HasSubstr(why)));
    spec_ = TrainingSpec(job_, roles_.segments, {0, 2});
  }

  void SetSegment(const std::string& text) {
    auto program = ParseProgram(text);
    ASSERT_OK(program);
    spec_.segments = {{"a", *program}};
  }

  const TrainingJob job_;
  const RolePrograms roles_;
  WorkerSessionSpec spec_;
};

TEST_F(RefusalTest, WhatDoesNotFitTogether) {
  ASSERT_OK(WorkerSession::Create(spec_, kMemory));
  spec_.experts = {};
  ExpectInvalid("experts: expected at least one");
  spec_.experts = {2, 0};
  ExpectInvalid("got 0 after 2");
  spec_.experts = {1, 1};
  ExpectInvalid("got 1 after 1");
  spec_.experts = {0, 5};
  ExpectInvalid("ids below 5, got 5");
  spec_.experts = {-1};
  ExpectInvalid("got -1");
  spec_.total_experts = 2049;
  ExpectInvalid("total_experts: expected 1 to 2048, got 2049");
  spec_.segments.clear();
  ExpectInvalid("segments: expected 1 to");
  spec_.segments.push_back(spec_.segments[0]);
  ExpectInvalid("a name of its own");
  spec_.microbatches_per_step = 0;
  ExpectInvalid("microbatches_per_step");
  spec_.microbatch_window = kMicrobatches + 1;
  ExpectInvalid("microbatch_window: expected 0 to 3");
  spec_.source.step = -1;
  ExpectInvalid("step: expected at least 0");
  spec_.parameters.push_back(spec_.parameters[0]);
  ExpectInvalid("is there twice");
  spec_.parameters.pop_back();
  ExpectInvalid("no parameter");
  spec_.parameters[0].name = "other";
  ExpectInvalid("parameter other: expected one gradient, got 0");
  spec_.parameters[0].dims[0] = 4;
  ExpectInvalid("expected [5, ...], got [4");
  spec_.parameters[0].dims[1] = 0;
  ExpectInvalid("sizes of at least 1");
  spec_.parameters[0].dims[1] += 1;
  ExpectInvalid("with a symbol for the first size");
  spec_.optimizer = nullptr;
  ExpectInvalid("segments of serving and evaluation only reply");
}

TEST_F(RefusalTest, WhatIsTooLarge) {
  ASSERT_OK_AND_ASSIGN(const int64_t bytes, CheckWorkerSession(spec_));
  EXPECT_OK(WorkerSession::Create(spec_, bytes));
  EXPECT_THAT(
      WorkerSession::Create(spec_, bytes - 1),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("takes")));
  spec_.parameters[0].dims = {5, int64_t{1} << 30, int64_t{1} << 24};
  EXPECT_THAT(
      WorkerSession::Create(spec_, kMemory),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("too large")));
  spec_.parameters[0].dims = {5, int64_t{1} << 40, int64_t{1} << 40};
  ExpectInvalid("2^60");
}

// Early gradients are kept whatever happens, so a step could never end.
TEST_F(RefusalTest, AWindowForWhichThereIsNoMemory) {
  ASSERT_OK_AND_ASSIGN(const int64_t bytes, CheckWorkerSession(spec_));
  ASSERT_OK_AND_ASSIGN(const auto session,
                       WorkerSession::Create(spec_, kMemory));
  int64_t gradient = 0;
  for (const auto& [name, tensor] : session->training()->Parameters()) {
    gradient += static_cast<int64_t>(tensor.bytes());
  }
  spec_.microbatch_window = 2;
  EXPECT_OK(WorkerSession::Create(spec_, bytes + 2 * gradient));
  EXPECT_THAT(WorkerSession::Create(spec_, bytes + 2 * gradient - 1),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("gradients of 2 microbatches")));
}

TEST_F(RefusalTest, SegmentsOfAnotherKind) {
  spec_.optimizer = nullptr;
  spec_.parameters.clear();
  SetSegment(
      "program \"a\" {\n"
      "  %0 = input() {name=\"x\", shape=[R, 8], type=\"f32\"} : f32[R, 8]\n"
      "  output \"reply/v0\" = %0\n}\n");
  ExpectInvalid("input x: expected call/ or saved/");
  spec_.parameters.clear();
  SetSegment(
      "program \"a\" {\n"
      "  %0 = input() {name=\"call/x\", shape=[R, 8], type=\"f32\"} : "
      "f32[R, 8]\n"
      "  output \"result\" = %0\n}\n");
  ExpectInvalid("output result: expected reply/");
}

}  // namespace
}  // namespace gshard
