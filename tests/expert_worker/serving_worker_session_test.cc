// Serving sessions of a worker: their answers and their memory.

#include "expert_worker/serving_worker_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "expert_worker/training_worker_session.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "services/checkpoint/write_shard.h"
#include "services/model/layers.h"
#include "services/tensor/buffer.h"
#include "services/train/plan.h"
#include "tests/expert_worker/training_model.h"
#include "tests/services/storage/scratch_directory.h"
#include "tests/testing/fake_device.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

const std::vector<int32_t>& Experts() {
  static const auto& experts = *new std::vector<int32_t>{1, 2, 4};
  return experts;
}

class ServingWorkerSessionTest : public ::testing::TestWithParam<ComputeType> {
 protected:
  ServingWorkerSessionTest() {
    RegisterMoeOps();
    RegisterShardingOps();
    model_ = SmallJob().model;
    model_.model_width = 64;
    model_.expert_width = 128;
    model_.expert_bias = true;
    model_.compute_type = GetParam();
    for (const auto& program :
         {BuildEncodeProgram(model_), BuildDecodeProgram(model_)}) {
      CHECK(program.ok());
      auto roles = SplitRoles(*program);
      CHECK(roles.ok());
      for (Segment& segment : roles->segments) {
        segments_.push_back(std::move(segment));
      }
    }
    WriteCheckpoint();
  }

  // A checkpoint as training writes it: float32 with optimizer state.
  void WriteCheckpoint() {
    ParameterStore store(SpecsOf(model_, /*per_expert=*/true), {0, 1, 2, 3, 4},
                         MakeOptimizer(OptimizerConfig(AdamConfig())));
    CHECK(store.Load(nullptr, 5).ok());
    Manifest manifest;
    manifest.step = 1;
    auto entries = WriteShard({scratch_.path(), 1, "w"}, store.Snapshot());
    CHECK(entries.ok());
    manifest.tensors = *entries;
    auto path = CommitCheckpoint(scratch_.path(), manifest, "");
    CHECK(path.ok());
    path_ = *path;
  }

  WorkerSessionSpec Spec() const {
    WorkerSessionSpec spec;
    spec.segments = segments_;
    spec.parameters = SpecsOf(model_, /*per_expert=*/true);
    spec.experts = Experts();
    spec.total_experts = static_cast<int32_t>(model_.experts);
    spec.source.checkpoint_directory = path_;
    return spec;
  }

  // Inputs for one call of a segment, seven rows.
  TensorMap InputsOf(const Segment& segment) const {
    TensorMap inputs;
    for (const Node* node : segment.program.NodesOf("input")) {
      const ValueType& type = segment.program.type(node->outputs[0]);
      Tensor& input = inputs[StringAttribute(node->attributes, "name")];
      if (type.type == ElementType::kInt32) {
        input = Tensor::Ints({3}, {2, 0, 5});
      } else {
        input = RandomTensor({7, model_.model_width}, 3);
      }
    }
    return inputs;
  }

  ModelConfig model_;
  std::vector<Segment> segments_;
  ScratchDirectory scratch_;
  std::string path_;
};

INSTANTIATE_TEST_SUITE_P(Types, ServingWorkerSessionTest,
                         ::testing::Values(ComputeType::kFloat32,
                                           ComputeType::kBFloat16,
                                           ComputeType::kInt8));

// Held, accounted and planned bytes agree: two bytes per weight of a product in
// bfloat16, and one in int8 plus eight bytes per column.
TEST_P(ServingWorkerSessionTest, HoldsItsWeightsOnce) {
  const int64_t factors = 2 * 64 * 128, biases = 64 + 128;
  const bool is_int8 = GetParam() == ComputeType::kInt8;
  const int64_t factor_bytes = GetParam() == ComputeType::kBFloat16 ? 2
                               : is_int8                            ? 1
                                                                    : 4;
  const int64_t column_bytes = is_int8 ? (64 + 128) * 8 : 0;
  const int64_t layers = std::ssize(MoeLayerNames(model_));
  const int64_t expected = std::ssize(Experts()) * layers *
                           (factors * factor_bytes + column_bytes + biases * 4);
  const MemoryAccount account(kMemory);
  const auto before = static_cast<int64_t>(GetBufferUsage().live_bytes);
  ASSERT_OK_AND_ASSIGN(const auto session,
                       WorkerSession::Create(Spec(), account));
  const auto held = static_cast<int64_t>(GetBufferUsage().live_bytes) - before;
  EXPECT_EQ(session->memory_bytes(), expected);
  EXPECT_EQ(account.used(), expected);
  // Allocated blocks have some slack at their ends.
  EXPECT_GE(held, expected);
  EXPECT_LT(held, expected + expected / 8);
  ASSERT_OK_AND_ASSIGN(const Plan plan, MakePlan(model_, {.workers = 2}));
  ASSERT_EQ(plan.most_experts_per_worker, std::ssize(Experts()));
  EXPECT_EQ(plan.worker_serving.weights, expected);
}

// Rounding weights on load gives the same results as rounding them at every
// call.
TEST_P(ServingWorkerSessionTest, AnswersAsFromTheFloatsOfTheCheckpoint) {
  ASSERT_OK_AND_ASSIGN(const auto session,
                       WorkerSession::Create(Spec(), kMemory));
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, CheckpointReader::Open(path_));
  ASSERT_OK_AND_ASSIGN(const TensorMap floats,
                       ReadParameters(SpecsOf(model_, /*per_expert=*/true),
                                      Experts(), checkpoint.get(), 0));
  SegmentHost host(segments_);
  // Weights are packed in panels where the processor supports it.
  for (const auto& [name, form] : host.weight_forms()) {
    const bool is_bias = absl::StrContains(name, ".moe.b");
    EXPECT_EQ(form, is_bias ? WeightForm{.type = ElementType::kFloat32}
                            : (WeightForm{.batch_dims = 1,
                                          .row_dims = 1,
                                          .type = WeightTypeFor(GetParam())}))
        << name;
  }
  for (const Segment& segment : segments_) {
    const TensorMap inputs = InputsOf(segment);
    SegmentRun run;
    run.segment = segment.name;
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> replies,
                         session->RunSegment(run, inputs));
    ASSERT_OK_AND_ASSIGN(const SegmentResult expected,
                         host.Run(segment.name, "", inputs, floats));
    ASSERT_EQ(replies.size(), expected.replies.size());
    for (size_t i = 0; i < replies.size(); ++i) {
      EXPECT_TRUE(TensorEqual(replies[i], expected.replies[i])) << segment.name;
    }
  }
}

// A session on a device answers as on the host and holds its weights once.
TEST_P(ServingWorkerSessionTest, AnswersFromADeviceAsFromTheHost) {
  RegisterFakeDeviceKernels(ExpertOps());
  FakeDevice device;
  ASSERT_OK_AND_ASSIGN(const auto host, WorkerSession::Create(Spec(), kMemory));
  const auto before = static_cast<int64_t>(GetBufferUsage().live_bytes);
  ASSERT_OK_AND_ASSIGN(const auto session,
                       WorkerSession::Create(Spec(), kMemory, &device));
  const auto held = static_cast<int64_t>(GetBufferUsage().live_bytes) - before;
  EXPECT_EQ(session->memory_bytes(), host->memory_bytes());
  EXPECT_GE(held, session->memory_bytes());
  EXPECT_LT(held, session->memory_bytes() * 9 / 8);
  SegmentRun run;
  run.segment = segments_[0].name;
  const TensorMap inputs = InputsOf(segments_[0]);
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> expected,
                       host->RunSegment(run, inputs));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> replies,
                       session->RunSegment(run, inputs));
  ASSERT_EQ(replies.size(), expected.size());
  for (size_t i = 0; i < replies.size(); ++i) {
    EXPECT_TRUE(TensorEqual(replies[i], expected[i]));
  }
}

TEST_P(ServingWorkerSessionTest, KnowsWhichCallsAreBrief) {
  ASSERT_OK_AND_ASSIGN(const auto session,
                       WorkerSession::Create(Spec(), kMemory));
  EXPECT_FALSE(session->IsBrief(0));
  session->CountRun(4, std::chrono::microseconds(20));
  session->CountRun(2, std::chrono::microseconds(10));
  session->CountRun(9, std::chrono::microseconds(200));
  EXPECT_TRUE(session->IsBrief(4));
  EXPECT_FALSE(session->IsBrief(5));
  session->CountRun(3, std::chrono::microseconds(200));
  EXPECT_TRUE(session->IsBrief(2));
  EXPECT_FALSE(session->IsBrief(3));
}

TEST_P(ServingWorkerSessionTest, DoesNotTrain) {
  ASSERT_OK_AND_ASSIGN(const auto session,
                       WorkerSession::Create(Spec(), kMemory));
  EXPECT_EQ(session->training(), nullptr);
  EXPECT_THAT(AsTraining(*session).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("does not train")));
  SegmentRun run;
  run.segment = segments_[0].name;
  run.step = 1;
  EXPECT_THAT(session->RunSegment(run, {}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("does not train, got step 1")));
  run.step = 0;
  run.microbatch = 1;
  EXPECT_FALSE(session->RunSegment(run, {}).ok());
  session->EndRuns(/*owner=*/1);
}

TEST_P(ServingWorkerSessionTest, TakesNoMoreThanThereIs) {
  ASSERT_OK_AND_ASSIGN(const int64_t bytes, CheckWorkerSession(Spec()));
  EXPECT_OK(WorkerSession::Create(Spec(), bytes));
  EXPECT_THAT(WorkerSession::Create(Spec(), bytes - 1),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("the session takes")));
}

}  // namespace
}  // namespace gshard
