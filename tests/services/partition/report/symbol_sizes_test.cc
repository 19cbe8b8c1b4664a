#include "services/partition/report/symbol_sizes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

TEST(SymbolSizesTest, PartsFollowFromTheWhole) {
  SymbolSizes sizes(*DeviceMesh::Create({{"router", 3, "a"},
                                         {"model_by", 2, "b"},
                                         {"expert", 4, "b"},
                                         {"spare", kElastic, "c", "E"}}));
  sizes.Set("B", 10);
  sizes.Set("R0", 100);
  sizes.Set("odd_by_router", 7);
  const auto size = [&](const char* symbol) {
    return sizes.SizeOf(absl::string_view(symbol));
  };
  EXPECT_EQ(*size("B"), 10);
  EXPECT_EQ(*size("B_by_router"), 4);
  EXPECT_EQ(*size("R0_by_expert_model_by"), 13);
  EXPECT_EQ(*size("R0_by_expert_of_model_by"), 13);
  EXPECT_EQ(*size("R0_by_expert_of_router"), 9);
  EXPECT_EQ(*size("odd_by_router"), 7);
  for (const char* unknown :
       {"C", "C_by_router", "B_by_spare", "B_by_", "E", "B_by_router_"}) {
    EXPECT_THAT(size(unknown), StatusIs(absl::StatusCode::kFailedPrecondition,
                                        HasSubstr("symbol ")))
        << unknown;
  }
  EXPECT_EQ(*sizes.Elements(Shape{Dim::Symbol("B") * 3, 5}), 150);
  EXPECT_EQ(*sizes.Elements(Shape{INT64_MAX, INT64_MAX}), INT64_MAX);
  EXPECT_EQ(*sizes.Elements(Shape{INT64_MAX, 0, INT64_MAX}), 0);
}

}  // namespace
}  // namespace gshard
