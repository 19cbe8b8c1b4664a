#include "services/segments/segment_host.h"

#include <set>
#include <thread>

#include "services/graph/builder.h"
#include "tests/services/segments/split_model.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// A host of the training program's segments with two of four experts. Each
// layer gets rows for both.
class SegmentHostTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto program = BuildTrainProgram(config_, LossConfig());
    ASSERT_OK(program);
    auto roles = SplitRoles(*program);
    ASSERT_OK(roles);
    roles_ = *std::move(roles);
    ASSERT_THAT(roles_.segments, SizeIs(4));
    parameters_ =
        ShareParameters(roles_, {{1, 3}}, TinyParameters(config_, 7))[0];
    host_ = std::make_unique<SegmentHost>(roles_.segments);
  }

  // The inputs of a call: 3 rows for the first expert and 2 for the second.
  TensorMap Inputs(int segment) const {
    TensorMap inputs;
    const Program& program = roles_.segments[segment].program;
    for (const Node* node : program.NodesOf("input")) {
      const std::string& name = StringAttribute(node->attributes, "name");
      if (!absl::StartsWith(name, "call/")) continue;
      const ValueType& type = program.type(node->outputs[0]);
      inputs[name] = type.type == ElementType::kInt32
                         ? Tensor::Ints({2}, {3, 2})
                         : RandomTensor({5, type.shape[1].size()}, segment);
    }
    return inputs;
  }

  absl::StatusOr<SegmentResult> Run(int segment, const std::string& run) {
    return host_->Run(roles_.segments[segment].name, run, Inputs(segment),
                      parameters_);
  }

  const ModelConfig config_ = TinyConfig();
  RolePrograms roles_;
  TensorMap parameters_;
  std::unique_ptr<SegmentHost> host_;
};

TEST_F(SegmentHostTest, ARunEndsWhenAllSegmentsHaveBeenCalled) {
  for (int repeat = 0; repeat < 2; ++repeat) {
    for (int segment = 0; segment < 4; ++segment) {
      ASSERT_OK_AND_ASSIGN(const SegmentResult result, Run(segment, "a"));
      EXPECT_THAT(result.replies, SizeIs(1));
      EXPECT_THAT(result.gradients, SizeIs(segment < 2 ? 0 : 2));
      EXPECT_EQ(result.run_ended, segment == 3);
      EXPECT_EQ(host_->open_runs(), segment == 3 ? 0 : 1);
      for (const auto& [name, gradient] : result.gradients) {
        EXPECT_EQ(gradient.dims(), parameters_.at(name).dims());
      }
    }
  }
}

TEST_F(SegmentHostTest, RunsDoNotSeeEachOther) {
  ASSERT_OK(Run(0, "a"));
  ASSERT_OK(Run(1, "a"));
  EXPECT_THAT(Run(2, "b"), StatusIs(absl::StatusCode::kFailedPrecondition,
                                    HasSubstr("which run 'b' has not saved")));
  // The failed call left nothing behind.
  EXPECT_EQ(host_->open_runs(), 1);
  EXPECT_OK(Run(0, "b"));
  EXPECT_OK(Run(2, "a"));
  host_->EndRun("b");
  host_->EndRun("never was");
  EXPECT_EQ(host_->open_runs(), 1);
}

TEST_F(SegmentHostTest, RefusesASecondCallInARun) {
  ASSERT_OK(Run(0, "a"));
  EXPECT_THAT(Run(0, "a"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("tiny.train/1 was called before in run 'a'")));
  host_->EndRun("a");
  EXPECT_EQ(host_->open_runs(), 0);
  EXPECT_OK(Run(0, "a"));
}

TEST_F(SegmentHostTest, RefusesUnknownSegments) {
  EXPECT_THAT(host_->Run("tiny.train/9", "a", {}, parameters_),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("no segment 'tiny.train/9'")));
}

TEST_F(SegmentHostTest, RefusesWrongInputs) {
  const std::string& segment = roles_.segments[0].name;
  const auto run = [&](TensorMap inputs) {
    return host_->Run(segment, "a", std::move(inputs), parameters_);
  };
  EXPECT_THAT(run({}), StatusIs(absl::StatusCode::kInvalidArgument,
                                HasSubstr("takes 2 inputs, got 0")));
  const TensorMap right = Inputs(0);
  for (const auto& [name, tensor] : right) {
    TensorMap other = right;
    other.erase(name);
    other["call/v9999"] = tensor;
    EXPECT_THAT(run(other), StatusIs(absl::StatusCode::kInvalidArgument,
                                     HasSubstr("needs the input " + name)));
    TensorMap wrong = right;
    wrong[name] = Tensor::Scalar(1.0f);
    EXPECT_THAT(run(wrong), StatusIs(absl::StatusCode::kInvalidArgument,
                                     HasSubstr("'" + name + "'")));
    if (tensor.type() == ElementType::kInt32) {
      // One size too many, too many rows, a negative size, too few rows.
      for (const Tensor& sizes :
           {Tensor::Ints({3}, {3, 1, 1}), Tensor::Ints({2}, {3, 3}),
            Tensor::Ints({2}, {6, -1}), Tensor::Ints({2}, {1, 1})}) {
        wrong[name] = sizes;
        EXPECT_THAT(run(wrong), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr(segment)));
      }
    } else {
      wrong[name] = RandomTensor({5, tensor.dim(1) + 1}, 1);
      EXPECT_THAT(run(wrong), StatusIs(absl::StatusCode::kInvalidArgument,
                                       HasSubstr("expected [")));
    }
  }
  EXPECT_EQ(host_->open_runs(), 0);
  EXPECT_OK(run(right));
}

TEST_F(SegmentHostTest, NamesAParameterThatIsMissing) {
  EXPECT_THAT(host_->Run(roles_.segments[0].name, "a", Inputs(0), {}),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("parameter 'encoder.0.moe.")));
  EXPECT_EQ(host_->open_runs(), 0);
}

// A caller cannot replace what an earlier segment saved by naming an input
// after it.
TEST_F(SegmentHostTest, SavedValuesAreNotTheCallersToBring) {
  ASSERT_OK(Run(0, "a"));
  ASSERT_OK(Run(1, "a"));
  TensorMap inputs = Inputs(2);
  ASSERT_THAT(inputs, SizeIs(1));
  const Tensor rows = inputs.begin()->second;
  for (const Node* node : roles_.segments[2].program.NodesOf("input")) {
    const std::string& name = StringAttribute(node->attributes, "name");
    if (!absl::StartsWith(name, "saved/")) continue;
    EXPECT_THAT(
        host_->Run(roles_.segments[2].name, "a", {{name, rows}}, parameters_),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 HasSubstr("needs the input call/")));
  }
}

TEST_F(SegmentHostTest, SaysWhatARunKeeps) {
  // A run keeps its rows [R, M] and the values [R, H] between its two products.
  ASSERT_OK_AND_ASSIGN(const SegmentResult first, Run(0, "a"));
  EXPECT_GT(first.saved_bytes, 0);
  ASSERT_OK_AND_ASSIGN(const SegmentResult other, Run(0, "b"));
  EXPECT_EQ(other.saved_bytes, first.saved_bytes);
  EXPECT_EQ(host_->open_runs(), 2u);
}

TEST_F(SegmentHostTest, ServingKeepsNothing) {
  ASSERT_OK_AND_ASSIGN(const Program program, BuildEncodeProgram(config_));
  ASSERT_OK_AND_ASSIGN(roles_, SplitRoles(program));
  SegmentHost host(roles_.segments);
  for (int repeat = 0; repeat < 3; ++repeat) {
    ASSERT_OK_AND_ASSIGN(
        const SegmentResult result,
        host.Run(roles_.segments[0].name, "", Inputs(0), parameters_));
    EXPECT_THAT(result.replies, SizeIs(1));
    EXPECT_EQ(host.open_runs(), 0);
  }
}

TEST_F(SegmentHostTest, WarmUpRunsWhatServes) {
  ASSERT_OK_AND_ASSIGN(const Program program, BuildEncodeProgram(config_));
  ASSERT_OK_AND_ASSIGN(roles_, SplitRoles(program));
  SegmentHost host(roles_.segments);
  EXPECT_OK(host.WarmUp(2, parameters_));
  EXPECT_EQ(host.open_runs(), 0);
  // WarmUp() runs the segments, so errors show before the first call.
  EXPECT_THAT(host.WarmUp(2, {}), StatusIs(absl::StatusCode::kNotFound,
                                           HasSubstr("encoder.0.moe.w")));
  EXPECT_THAT(host.WarmUp(3, parameters_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("")));
  // WarmUp() skips training segments, because their calls leave state behind.
  EXPECT_OK(host_->WarmUp(2, {}));
}

// A coordinator's program may declare any size: more than memory has, than a
// tensor may have, and so many bytes that their number wraps.
TEST(SegmentHostWarmUpTest, InputsThatMemoryCannotHoldAreErrors) {
  const Dim rows = Dim::Symbol("R");
  const int64_t big = int64_t{1} << 40;
  for (const Shape& shape :
       {Shape{rows, big}, Shape{rows, big, int64_t{1} << 21},
        Shape{rows, big, int64_t{1} << 22}}) {
    Builder b("huge");
    b.Output("reply/v1",
             b.Relu(b.Input("call/v0", {ElementType::kFloat32, shape})));
    ASSERT_OK_AND_ASSIGN(Program program, std::move(b).Finish());
    SegmentHost host(std::vector<Segment>{{"huge/1", std::move(program)}});
    EXPECT_THAT(
        host.WarmUp(2, {}),
        StatusIs(absl::StatusCode::kResourceExhausted,
                 AllOf(HasSubstr("huge/1"), HasSubstr(ShapeToString(shape)))));
  }
}

TEST_F(SegmentHostTest, RunsGoOnAtTheSameTime) {
  ASSERT_OK_AND_ASSIGN(const SegmentResult alone, Run(0, "alone"));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int repeat = 0; repeat < 20; ++repeat) {
        const std::string run = absl::StrCat(t, "/", repeat);
        for (int segment = 0; segment < 4; ++segment) {
          auto result = Run(segment, run);
          ASSERT_OK(result);
          if (segment == 0) {
            EXPECT_TRUE(TensorEqual(result->replies[0], alone.replies[0]));
          }
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(host_->open_runs(), 1);
}

}  // namespace
}  // namespace gshard
