#include "services/segments/segments_key.h"

#include <gmock/gmock.h>

#include <set>

#include "services/model/transformer.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tiny_model.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

std::vector<Segment> SegmentsOf(const ModelConfig& model) {
  const absl::StatusOr<Program> program = BuildEncodeProgram(model);
  CHECK(program.ok());
  absl::StatusOr<RolePrograms> roles = SplitRoles(*program);
  CHECK(roles.ok());
  return std::move(roles->segments);
}

TEST(SegmentsKeyTest, IsThatOfTheSegmentsToTheLetter) {
  ModelConfig model = TinyConfig();
  model.encoder_layers = 4;
  const std::vector<Segment> segments = SegmentsOf(model);
  ASSERT_GT(segments.size(), 1u);
  const uint64_t key = SegmentsKey(0, segments);
  EXPECT_EQ(SegmentsKey(0, SegmentsOf(model)), key);

  std::set<uint64_t> keys = {0, key};
  const auto differs = [&keys](uint64_t other) {
    EXPECT_TRUE(keys.insert(other).second) << other;
  };
  differs(SegmentsKey(key, segments));  // twice
  differs(SegmentsKey(0, {segments.rbegin(), segments.rend()}));
  differs(SegmentsKey(0, {segments[0]}));
  std::vector<Segment> renamed = segments;
  renamed[0].name += "x";
  differs(SegmentsKey(0, renamed));
  model.compute_type = ComputeType::kBFloat16;
  differs(SegmentsKey(0, SegmentsOf(model)));
}

TEST(SegmentsKeyTest, OtherSegmentsAreRefused) {
  EXPECT_OK(CheckSegmentsKey(7, 7));
  EXPECT_OK(CheckSegmentsKey(0, 7));
  EXPECT_THAT(CheckSegmentsKey(7, 8), StatusIs(absl::StatusCode::kUnimplemented,
                                               HasSubstr("segments_key")));
}

}  // namespace
}  // namespace gshard
