#include "services/sharding/annotation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "services/graph/text.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

DeviceMesh Mesh() {
  return *DeviceMesh::Create({{"x", 2, "device"}, {"y", 3, "device"}});
}

struct Annotated {
  Builder b{"annotated"};
  ValueId v = b.Input("v", {ElementType::kFloat32, {12, 6}});

  absl::StatusOr<std::optional<Annotation>> Read() {
    return GetAnnotation(b.program(), v, Mesh());
  }
  std::string ToString() {
    const auto annotation = Read();
    EXPECT_OK(annotation.status());
    if (!annotation.ok() || !annotation->has_value()) return "none";
    return (*annotation)->sharding.ToString(Mesh());
  }
};

TEST(AnnotationTest, SplitsAddUp) {
  Annotated a;
  EXPECT_EQ(a.ToString(), "none");
  EXPECT_EQ(Split(a.b, a.v, 0, "y"), a.v);
  EXPECT_EQ(a.ToString(), "[y, -]");
  Split(a.b, a.v, 0, "x");
  EXPECT_EQ(a.ToString(), "[y,x, -]");
}

TEST(AnnotationTest, PartsFindTheirAxis) {
  Annotated a;
  Split(a.b, a.v, 1, 3);
  EXPECT_EQ(a.ToString(), "[-, y]");
  Annotated none;
  Split(none.b, none.v, 1, 5);
  EXPECT_THAT(none.Read(), StatusIs(absl::StatusCode::kInvalidArgument,
                                    HasSubstr("no free axis of size 5")));
}

TEST(AnnotationTest, ReplicateIsSaidOnceOrTwice) {
  Annotated a;
  Replicate(a.b, a.v);
  Replicate(a.b, a.v);
  EXPECT_OK(a.b.status());
  EXPECT_EQ(a.ToString(), "[-, -]");
}

TEST(AnnotationTest, AnAssignmentOrdersDevices) {
  Annotated a;
  Shard(a.b, a.v, {.dims = {2, 3}, .devices = {5, 4, 3, 2, 1, 0}});
  EXPECT_EQ(a.ToString(), "[x, y]");
  ASSERT_OK_AND_ASSIGN(const auto annotation, a.Read());
  EXPECT_THAT(annotation->device_order, ElementsAre(5, 4, 3, 2, 1, 0));
  // The mesh's own order yields an empty device_order.
  Annotated same;
  Shard(same.b, same.v, {.dims = {6, 1}, .devices = {0, 1, 2, 3, 4, 5}});
  EXPECT_EQ(same.ToString(), "[x,y, -]");
  ASSERT_OK_AND_ASSIGN(const auto usual, same.Read());
  EXPECT_THAT(usual->device_order, IsEmpty());
}

TEST(AnnotationTest, AssignmentsMustFitTheMesh) {
  const std::vector<DeviceAssignment> wrong = {
      {.dims = {2, 3}, .devices = {0, 1, 2, 3, 4, 4}},
      {.dims = {2, 3}, .devices = {0, 1}},
      {.dims = {3, 2}, .devices = {0, 1, 2, 3, 4, 5}},
      {.dims = {4, 1}, .devices = {0, 1, 2, 3, 4, 5}}};
  for (const DeviceAssignment& assignment : wrong) {
    Annotated a;
    Shard(a.b, a.v, assignment);
    EXPECT_OK(a.b.status());
    EXPECT_THAT(a.Read(), StatusIs(absl::StatusCode::kInvalidArgument,
                                   HasSubstr("f32[12, 6] annotated shard")));
  }
}

TEST(AnnotationTest, ContradictionsAreErrorsOfTheBuilder) {
  const std::vector<std::function<void(Annotated&)>> wrong = {
      [](Annotated& a) { Split(a.b, a.v, 2, "x"); },
      [](Annotated& a) { Split(a.b, a.v, -1, "x"); },
      [](Annotated& a) { Split(a.b, Split(a.b, a.v, 0, "x"), 1, "x"); },
      [](Annotated& a) { Split(a.b, Split(a.b, a.v, 0, "x"), 0, "x"); },
      [](Annotated& a) { Replicate(a.b, Split(a.b, a.v, 0, "x")); },
      [](Annotated& a) { Split(a.b, Replicate(a.b, a.v), 0, "x"); },
      [](Annotated& a) { Shard(a.b, a.v, {.dims = {6}, .devices = {0}}); }};
  for (size_t i = 0; i < wrong.size(); ++i) {
    Annotated a;
    wrong[i](a);
    EXPECT_THAT(a.b.status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("cannot annotate f32[12, 6] with")))
        << i;
  }
}

TEST(AnnotationTest, TextFromAnywhereIsChecked) {
  for (const char* text : {"split", "split(0)", "split(a, x)", "split(9, x)",
                           "shard(2 3, a)", "replicate it", "; "}) {
    Annotated a;
    a.b.Annotate(a.v, text);
    EXPECT_THAT(a.Read(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)))
        << text;
  }
  Annotated unknown;
  Split(unknown.b, unknown.v, 0, "z");
  EXPECT_THAT(unknown.Read(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("z")));
}

TEST(AnnotationTest, SurvivesTheTextForm) {
  Annotated a;
  Split(a.b, Split(a.b, a.v, 0, "y"), 1, "x");
  a.b.Output("v", a.v);
  ASSERT_OK_AND_ASSIGN(const Program parsed,
                       ParseProgram(ProgramToText(a.b.program())));
  EXPECT_EQ(parsed.values[a.v].sharding, a.b.program().values[a.v].sharding);
}

}  // namespace
}  // namespace gshard
