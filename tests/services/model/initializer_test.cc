#include "services/model/initializer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

std::vector<float> Values(const Initializer& initializer, uint64_t seed,
                          const std::string& name, size_t size) {
  std::vector<float> values(size, -7.0f);
  EXPECT_OK(Initialize(initializer, seed, name, absl::MakeSpan(values)));
  return values;
}

constexpr Initializer kUniform = {.kind = InitializerKind::kUniformFanIn,
                                  .fan_in = 12};
constexpr Initializer kNormal = {.kind = InitializerKind::kNormal,
                                 .stddev = 0.02};

TEST(InitializerTest, Constants) {
  EXPECT_THAT(Values({.kind = InitializerKind::kZeros}, 1, "a", 9), Each(0.0f));
  EXPECT_THAT(Values({.kind = InitializerKind::kOnes}, 1, "a", 9), Each(1.0f));
}

TEST(InitializerTest, UniformHasItsRangeAndVariance) {
  const std::vector<float> values = Values(kUniform, 1, "w", 100000);
  double sum = 0.0, squares = 0.0;
  for (const float value : values) {
    ASSERT_LE(std::fabs(value), 0.5f);  // sqrt(3 / 12)
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / 1e5, 0.0, 0.005);
  EXPECT_NEAR(squares / 1e5, 1.0 / 12, 0.002);
}

TEST(InitializerTest, NormalHasItsDeviation) {
  const std::vector<float> values = Values(kNormal, 1, "w", 100000);
  double squares = 0.0;
  for (const float value : values) squares += value * value;
  EXPECT_NEAR(std::sqrt(squares / 1e5), 0.02, 0.0003);
}

TEST(InitializerTest, DependsOnSeedAndNameOnly) {
  for (const Initializer& initializer : {kUniform, kNormal}) {
    const std::vector<float> values = Values(initializer, 1, "moe/wi/7", 50);
    EXPECT_EQ(values, Values(initializer, 1, "moe/wi/7", 50));
    EXPECT_NE(values, Values(initializer, 2, "moe/wi/7", 50));
    EXPECT_NE(values, Values(initializer, 1, "moe/wi/8", 50));
    // Values do not depend on the size: a longer tensor starts the same.
    const std::vector<float> more = Values(initializer, 1, "moe/wi/7", 90);
    EXPECT_EQ(values, std::vector<float>(more.begin(), more.begin() + 50));
  }
}

// Values are fixed, since a change to the generator would silently change every
// model.
TEST(InitializerTest, ValuesAreTheseForGood) {
  const std::vector<float> values = Values(kUniform, 17, "encoder/embed", 3);
  EXPECT_FLOAT_EQ(values[0], -0.39806402f);
  EXPECT_FLOAT_EQ(values[1], 0.4105621f);
  EXPECT_FLOAT_EQ(values[2], -0.47044218f);
}

TEST(InitializerTest, ExpertsAreLogicalTensors) {
  EXPECT_EQ(ExpertTensorName("decoder/moe_3/wo", 2047),
            "decoder/moe_3/wo/2047");
}

TEST(InitializerTest, RefusesFieldsOutOfRange) {
  float value = 0.0f;
  const auto initialize = [&](const Initializer& initializer) {
    return Initialize(initializer, 1, "w", absl::MakeSpan(&value, 1));
  };
  EXPECT_THAT(initialize({.kind = InitializerKind::kUniformFanIn}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("'w': fan_in must be >= 1, got 0")));
  for (const double stddev : {-1.0, std::nan("")}) {
    EXPECT_THAT(
        initialize({.kind = InitializerKind::kNormal, .stddev = stddev}),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 HasSubstr("'w': stddev must be >= 0")));
  }
  EXPECT_THAT(initialize({.kind = static_cast<InitializerKind>(9)}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("kind must be a known one, got 9")));
}

}  // namespace
}  // namespace gshard
