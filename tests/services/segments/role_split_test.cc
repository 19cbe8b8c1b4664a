#include "services/segments/role_split.h"

#include <map>

#include "services/graph/text.h"
#include "services/sharding/annotation.h"
#include "tests/services/segments/split_model.h"
#include "tests/testing/builder_ops.h"
#include "tests/testing/find_output.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string NameOf(const Node& node) {
  return StringAttribute(node.attributes, "name");
}

// The names of parameters or inputs.
std::vector<std::string> Names(const Program& program, const char* op) {
  std::vector<std::string> names;
  for (const Node* node : program.NodesOf(op)) names.push_back(NameOf(*node));
  return names;
}

std::vector<std::string> OutputsThatStartWith(const Program& program,
                                              const char* prefix) {
  std::vector<std::string> names;
  for (const auto& [name, value] : program.outputs) {
    if (absl::StartsWith(name, prefix)) names.push_back(name);
  }
  return names;
}

class RoleSplitTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    config_ = TinyConfig();
    config_.expert_bias = GetParam();
    config_.decoder_layers = 3;  // layers 0 and 2 are MoE
    auto program = BuildTrainProgram(config_, LossConfig());
    ASSERT_OK(program);
    program_ = *std::move(program);
    auto roles = SplitRoles(program_);
    ASSERT_OK(roles);
    roles_ = *std::move(roles);
  }

  ModelConfig config_;
  Program program_;
  RolePrograms roles_;
};

TEST_P(RoleSplitTest, OneCallForwardAndOneBackwardPerMoeLayer) {
  const std::vector<std::string> layers = MoeLayerNames(config_);
  const std::vector<const Node*> calls = roles_.router.NodesOf("call_segment");
  ASSERT_EQ(calls.size(), 2 * layers.size());
  ASSERT_EQ(roles_.segments.size(), 2 * layers.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(GetSegmentCall(*calls[i]).segment, roles_.segments[i].name);
    // Forward in order, then backward in reverse order.
    const bool forward = i < layers.size();
    const std::string& layer =
        forward ? layers[i] : layers[2 * layers.size() - 1 - i];
    for (const std::string& name :
         Names(roles_.segments[i].program, "parameter")) {
      EXPECT_THAT(name, ::testing::StartsWith(layer + "."));
    }
    const Program& segment = roles_.segments[i].program;
    EXPECT_EQ(segment.NodesOf("ragged_dot").size(), forward ? 2 : 0);
    EXPECT_EQ(segment.NodesOf("ragged_dot_weights_gradient").size(),
              forward ? 0 : 2);
    // One exchange brings the rows, another returns them.
    EXPECT_EQ(OutputsThatStartWith(segment, "reply/").size(), 1);
    const SegmentCall call = GetSegmentCall(*calls[i]);
    EXPECT_EQ(
        std::count(call.division.begin(), call.division.end(), Division::kRows),
        1);
    EXPECT_EQ(call.sent[0], forward);  // kept for backward
    if (forward) {
      EXPECT_THAT(OutputsThatStartWith(segment, "gradient/"), IsEmpty());
      EXPECT_FALSE(OutputsThatStartWith(segment, "save/").empty());
    } else {
      EXPECT_EQ(OutputsThatStartWith(segment, "gradient/").size(),
                GetParam() ? 4 : 2);
      EXPECT_THAT(OutputsThatStartWith(segment, "save/"), IsEmpty());
    }
  }
}

TEST_P(RoleSplitTest, RouterHasNothingOfTheExperts) {
  std::map<std::string, bool> per_expert;
  for (const ParameterSpec& spec : ModelParameters(config_)) {
    per_expert[spec.name] = spec.per_expert;
  }
  std::vector<std::string> names = Names(roles_.router, "parameter");
  for (const std::string& name : names) {
    EXPECT_FALSE(per_expert.at(name)) << name;
  }
  for (const auto& [name, is_expert] : per_expert) {
    EXPECT_EQ(FindOutput(roles_.router, "gradient/" + name) == kNoValue,
              is_expert)
        << name;
    EXPECT_EQ(std::count(names.begin(), names.end(), name), !is_expert);
  }
  for (const Node& node : roles_.router.nodes) {
    EXPECT_FALSE(absl::StartsWith(node.op->name, "ragged_")) << node.op->name;
  }
}

TEST_P(RoleSplitTest, SegmentsKnowNoNumberOfExperts) {
  for (const Segment& segment : roles_.segments) {
    for (const Node* node : segment.program.NodesOf("parameter")) {
      EXPECT_EQ(ShapeAttribute(node->attributes, "shape")[0], Dim::Symbol("E"));
    }
    for (const auto& [name, value] : segment.program.outputs) {
      if (absl::StartsWith(name, "gradient/")) {
        EXPECT_EQ(segment.program.type(value).shape[0], Dim::Symbol("E"));
      }
    }
  }
}

TEST_P(RoleSplitTest, TextGivesAllProgramsBack) {
  std::vector<const Program*> programs = {&roles_.router};
  for (const Segment& s : roles_.segments) programs.push_back(&s.program);
  for (const Program* program : programs) {
    const std::string text = ProgramToText(*program);
    ASSERT_OK_AND_ASSIGN(const Program parsed, ParseProgram(text));
    EXPECT_EQ(ProgramToText(parsed), text);
  }
}

// The size of the split program does not grow with the number of experts.
TEST_P(RoleSplitTest, SizeDoesNotDependOnTheExperts) {
  config_.experts = 2048;
  ASSERT_OK_AND_ASSIGN(const Program program,
                       BuildTrainProgram(config_, LossConfig()));
  ASSERT_OK_AND_ASSIGN(const RolePrograms roles, SplitRoles(program));
  EXPECT_EQ(roles.router.nodes.size(), roles_.router.nodes.size());
  ASSERT_EQ(roles.segments.size(), roles_.segments.size());
  for (size_t i = 0; i < roles.segments.size(); ++i) {
    EXPECT_EQ(ProgramToText(roles.segments[i].program),
              ProgramToText(roles_.segments[i].program));
  }
}

INSTANTIATE_TEST_SUITE_P(ExpertBias, RoleSplitTest, ::testing::Bool());

const Dim R = Dim::Symbol("R");

// rows [R, 3] times weights [4, 3, 3] with `annotation`, then `more`.
absl::StatusOr<RolePrograms> SplitOf(
    const std::string& annotation,
    const std::function<void(Builder&, ValueId rows, ValueId weights,
                             ValueId sizes)>& more) {
  Builder b("p");
  const ValueId rows = b.Input("rows", {ElementType::kFloat32, {R, 3}});
  const ValueId sizes = b.Input("sizes", {ElementType::kInt32, {4}});
  const ValueId weights = b.Parameter("w", {4, 3, 3});
  b.Annotate(weights, annotation);
  more(b, rows, weights, sizes);
  auto program = std::move(b).Finish();
  if (!program.ok()) return program.status();
  return SplitRoles(*program);
}

TEST(SplitRolesTest, WithoutAnnotationsAllIsTheRouters) {
  ASSERT_OK_AND_ASSIGN(
      const RolePrograms roles,
      SplitOf("", [](Builder& b, ValueId rows, ValueId w, ValueId sizes) {
        b.Output("y", b.RaggedDot(rows, w, sizes));
      }));
  EXPECT_THAT(roles.segments, IsEmpty());
  EXPECT_THAT(Names(roles.router, "parameter"), ElementsAre("w"));
}

TEST(SplitRolesTest, DependentProductsAreTwoSegments) {
  // Only the router can compute a sum over rows.
  ASSERT_OK_AND_ASSIGN(
      const RolePrograms roles,
      SplitOf("split(0, expert)",
              [](Builder& b, ValueId rows, ValueId w, ValueId sizes) {
                const ValueId y = b.RaggedDot(rows, w, sizes);
                const ValueId z = b.Add(rows, b.ReduceSum(y, {0}));
                b.Output("y", b.RaggedDot(z, w, sizes));
              }));
  EXPECT_EQ(roles.segments.size(), 2);
}

TEST(SplitRolesTest, RefusesOtherAnnotations) {
  const auto product = [](Builder& b, ValueId rows, ValueId w, ValueId sizes) {
    b.Output("y", b.RaggedDot(rows, w, sizes));
  };
  EXPECT_THAT(SplitOf("split(1, expert)", product),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("parameter 'w' f32[4, 3, 3] can be split(0, "
                                 "expert) only, got [-, expert, -]")));
  for (const char* text :
       {"banana", "split(3, expert)", "split(-1, expert)", "split(0, )",
        "split(x, expert)", "split(0, expert"}) {
    EXPECT_THAT(SplitOf(text, product),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(absl::StrCat("annotated ", text))));
  }
}

TEST(SplitRolesTest, RefusesOperatorsThatMixSides) {
  EXPECT_THAT(SplitOf("split(0, expert)",
                      [](Builder& b, ValueId, ValueId w, ValueId) {
                        b.Output("y", Softmax(b, w));
                      }),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("operator 'softmax' on nothing but")));
  EXPECT_THAT(
      SplitOf("split(0, expert)", [](Builder& b, ValueId, ValueId w,
                                     ValueId) { b.Output("y", b.Relu(w)); }),
      StatusIs(absl::StatusCode::kUnimplemented,
               HasSubstr("operator 'relu' on nothing but")));
  EXPECT_THAT(SplitOf("split(0, expert)",
                      [](Builder& b, ValueId, ValueId w, ValueId) {
                        b.Output("y", b.Reshape(w, {12, 3}));
                      }),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("(reshape): no way for v2 f32[4, 3, 3]")));
  // Group sizes of one batch of rows do not apply to another batch.
  EXPECT_THAT(SplitOf("split(0, expert)",
                      [](Builder& b, ValueId rows, ValueId w, ValueId sizes) {
                        const ValueId others =
                            b.Input("others", {ElementType::kInt32, {4}});
                        b.Output("y", b.Add(b.RaggedDot(rows, w, sizes),
                                            b.RaggedDot(rows, w, others)));
                      }),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("no way for v1 i32[4]")));
  // Two parallel dispatches would have to share one exchange.
  EXPECT_THAT(
      SplitOf("split(0, expert)",
              [](Builder& b, ValueId rows, ValueId w, ValueId sizes) {
                const ValueId others =
                    b.Input("others", {ElementType::kInt32, {4}});
                const ValueId other_rows =
                    b.Input("other_rows",
                            {ElementType::kFloat32, {Dim::Symbol("Q"), 3}});
                b.Output("y", b.RaggedDot(rows, w, sizes));
                b.Output("z", b.RaggedDot(other_rows, w, others));
              }),
      StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("two dispatches")));
}

TEST(AnnotationTest, SplitChecksTheDimension) {
  Builder b("p");
  const ValueId x = b.Input("x", {ElementType::kFloat32, {R, 3}});
  Split(b, x, 2, "expert");
  EXPECT_THAT(std::move(b).Finish(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("cannot annotate f32[R, 3] with split(2, "
                                 "expert)")));
}

}  // namespace
}  // namespace gshard
