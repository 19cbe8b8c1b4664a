#include "services/sharding/propagation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "services/base/random.h"
#include "services/graph/gradient.h"
#include "services/graph/text.h"
#include "tests/services/partition/random/random_case.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

DeviceMesh TwoAxes() {
  return *DeviceMesh::Create({{"x", 2, "device"}, {"y", 2, "device"}});
}

Shardings Complete(const Program& program, const DeviceMesh& mesh) {
  auto shardings = Propagate(program, mesh);
  EXPECT_OK(shardings.status());
  return *std::move(shardings);
}

std::string Completed(const Builder& b, ValueId value) {
  const DeviceMesh mesh = TwoAxes();
  return Complete(b.program(), mesh).of[value].ToString(mesh);
}

ValueId Float(Builder& b, const std::string& name, Shape shape) {
  return b.Input(name, {ElementType::kFloat32, std::move(shape)});
}

// --- Properties of every program. ---

constexpr int kPrograms = 60;

std::vector<RandomCase> Programs() {
  std::vector<RandomCase> cases;
  for (const Family& family : AllFamilies()) {
    for (uint64_t seed = 0; seed < kPrograms; ++seed) {
      if (family.name != "manual") cases.push_back(MakeCase(family, seed));
    }
  }
  return cases;
}

std::string AnnotationOf(const Sharding& sharding, const DeviceMesh& mesh) {
  std::string text;
  for (size_t d = 0; d < sharding.dims.size(); ++d) {
    for (const int axis : sharding.dims[d].axes) {
      absl::StrAppend(&text, text.empty() ? "" : "; ", "split(", d, ", ",
                      mesh.axis(axis).name, ")");
    }
  }
  return text;
}

bool IsByToken(const Sharding& sharding) {
  return std::any_of(
      sharding.dims.begin(), sharding.dims.end(),
      [](const DimSharding& dim) { return !dim.token_axes.empty(); });
}

TEST(PropagationTest, TheResultIsAFixedPoint) {
  for (const RandomCase& c : Programs()) {
    const Shardings once = Complete(c.program, c.mesh);
    Program annotated = c.program;
    bool can_be_said = true;
    for (size_t v = 0; v < annotated.values.size(); ++v) {
      can_be_said = can_be_said && !IsByToken(once.of[v]);
      const std::string text = AnnotationOf(once.of[v], c.mesh);
      if (!text.empty()) annotated.values[v].sharding = text;
    }
    // Annotations cannot express that rows are split by token.
    if (!can_be_said) continue;
    EXPECT_EQ(Complete(annotated, c.mesh).of, once.of) << c.ToString();
  }
}

TEST(PropagationTest, AnnotationsNeverChange) {
  for (const RandomCase& c : Programs()) {
    const Shardings found = Complete(c.program, c.mesh);
    for (size_t v = 0; v < c.program.values.size(); ++v) {
      ASSERT_OK_AND_ASSIGN(const auto annotation,
                           GetAnnotation(c.program, v, c.mesh));
      if (!annotation.has_value()) continue;
      EXPECT_EQ(found.of[v], annotation->sharding) << c.ToString();
      EXPECT_EQ(found.origins[v].kind, Origin::kAnnotation);
    }
  }
}

// The nodes in another executable order, with values renumbered.
Program Shuffled(const Program& program, uint64_t key,
                 std::vector<ValueId>& renamed) {
  Program shuffled;
  renamed.assign(program.values.size(), kNoValue);
  std::vector<int> left(program.nodes.size());
  for (size_t n = 0; n < left.size(); ++n) left[n] = n;
  for (uint64_t drawn = 0; !left.empty(); ++drawn) {
    const size_t i = RandomBelow(key, drawn, left.size());
    Node node = program.nodes[left[i]];
    const bool ready =
        std::all_of(node.inputs.begin(), node.inputs.end(),
                    [&](ValueId v) { return renamed[v] != kNoValue; });
    if (!ready) continue;
    left.erase(left.begin() + i);
    for (ValueId& input : node.inputs) input = renamed[input];
    for (ValueId& output : node.outputs) {
      renamed[output] = static_cast<ValueId>(shuffled.values.size());
      shuffled.values.push_back(program.values[output]);
      shuffled.values.back().producer =
          static_cast<int32_t>(shuffled.nodes.size());
      output = renamed[output];
    }
    shuffled.nodes.push_back(std::move(node));
  }
  return shuffled;
}

TEST(PropagationTest, TheOrderOfNodesDoesNotMatter) {
  for (const RandomCase& c : Programs()) {
    const Shardings found = Complete(c.program, c.mesh);
    for (const uint64_t key : {1, 2}) {
      std::vector<ValueId> renamed;
      const Shardings other =
          Complete(Shuffled(c.program, key, renamed), c.mesh);
      for (size_t v = 0; v < renamed.size(); ++v) {
        ASSERT_EQ(other.of[renamed[v]], found.of[v])
            << "v" << v << " of " << c.ToString();
      }
    }
  }
}

// --- Priorities. ---

// y = x w, with x [8, 4] and w [4, 16] split along the same axis, so that y
// cannot follow both.
struct Contested {
  Builder b{"contested"};
  ValueId x = Split(b, Float(b, "x", {8, 4}), 0, "x");
  ValueId w = Split(b, Float(b, "w", {4, 16}), 1, "x");
  ValueId y = b.Einsum("ab,bc->ac", x, w);
};

TEST(PropagationTest, LargerTensorsAreMoreImportant) {
  const Contested contested;
  EXPECT_EQ(Completed(contested.b, contested.y), "[-, x]");
}

TEST(PropagationTest, PassThroughComesBeforeSize) {
  Contested contested;
  Builder& b = contested.b;
  // t decides although it is smaller than w, since Transpose and Add pass its
  // sharding through.
  const ValueId t = Split(b, Float(b, "t", {8}), 0, "x");
  const ValueId turned = b.Transpose(contested.y, {1, 0});
  b.Add(turned, t);
  EXPECT_EQ(Completed(b, contested.y), "[x, -]");
}

TEST(PropagationTest, MoreWaysComeBeforeFewer) {
  Builder b("ways");
  const ValueId one = Split(b, Float(b, "one", {8, 4}), 0, "x");
  ValueId two = Split(b, Float(b, "two", {8, 4}), 1, "y");
  two = Split(b, two, 1, "x");
  EXPECT_EQ(Completed(b, b.Add(one, two)), "[-, y,x]");
}

TEST(PropagationTest, TheLowerDimensionComesFirst) {
  Builder b("dimensions");
  const ValueId one = Split(b, Float(b, "one", {8, 4}), 1, "x");
  const ValueId zero = Split(b, Float(b, "zero", {8, 4}), 0, "x");
  EXPECT_EQ(Completed(b, b.Add(one, zero)), "[x, -]");
}

TEST(PropagationTest, TheFirstAxisOfTheMeshComesFirst) {
  Builder b("axes");
  const ValueId y = Split(b, Float(b, "y", {8, 4}), 0, "y");
  const ValueId x = Split(b, Float(b, "x", {8, 4}), 0, "x");
  EXPECT_EQ(Completed(b, b.Add(y, x)), "[x, -]");
}

// --- Directions. ---

TEST(PropagationTest, FactsGoForwardsAndBackwards) {
  Builder b("both");
  const ValueId x = Float(b, "x", {8, 4});
  const ValueId scaled = b.Scale(x, 2.0);
  const ValueId middle = Split(b, b.Transpose(scaled, {1, 0}), 1, "y");
  const ValueId y = b.Relu(middle);
  EXPECT_EQ(Completed(b, x), "[y, -]");
  EXPECT_EQ(Completed(b, y), "[-, y]");
}

TEST(PropagationTest, ReplicatedStaysWholeAndStopsFacts) {
  Builder b("stop");
  const ValueId x = Split(b, Float(b, "x", {8, 4}), 0, "x");
  const ValueId wall = Replicate(b, b.Relu(x));
  const ValueId y = b.Relu(wall);
  EXPECT_EQ(Completed(b, wall), "[-, -]");
  EXPECT_EQ(Completed(b, y), "[-, -]");
}

TEST(PropagationTest, GradientsLieAsTheirValues) {
  Builder b("gradients");
  const ValueId x = Split(b, Float(b, "x", {8, 4}), 0, "x");
  const ValueId w = Split(b, b.Parameter("w", {4, 16}), 1, "y");
  const ValueId y = b.Relu(b.Einsum("ab,bc->ac", x, w));
  const ValueId loss = b.ReduceSum(b.Multiply(y, y), {0, 1});
  ASSERT_OK_AND_ASSIGN(const auto gradients, AddGradients(b, loss, {x, w, y}));
  EXPECT_EQ(Completed(b, gradients[0]), "[x, -]");
  EXPECT_EQ(Completed(b, gradients[1]), "[-, y]");
  EXPECT_EQ(Completed(b, y), "[x, y]");
  EXPECT_EQ(Completed(b, gradients[2]), "[x, y]");
}

TEST(ExplainTest, SaysWhereEachShardingComesFrom) {
  Builder b("explained");
  const ValueId x = Split(b, Float(b, "x", {Dim::Symbol("B"), 4}), 0, "x");
  const ValueId w = Float(b, "w", {4, 6});
  b.Relu(b.Einsum("ab,bc->ac", x, w));
  const DeviceMesh mesh = TwoAxes();
  EXPECT_EQ(Explain(b.program(), mesh, Complete(b.program(), mesh)),
            "v0 f32[B, 4] [x, -] annotated split(0, x)\n"
            "v2 f32[B, 6] [x, -] from v0 through einsum\n"
            "v3 f32[B, 6] [x, -] from v2 through relu\n");
}

}  // namespace
}  // namespace gshard
