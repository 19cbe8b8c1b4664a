#include "services/segments/call_segment.h"

#include "services/graph/builder.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

TEST(CallSegmentTest, RefusesWrongAttributes) {
  RegisterShardingOps();
  const auto build = [](std::vector<int64_t> division, std::string names) {
    Builder b("p");
    const ValueId sizes = b.Input("sizes", {ElementType::kInt32, {5}});
    b.AddNode("call_segment", {sizes},
              {{"segment", "p/1"},
               {"division", std::move(division)},
               {"sent", std::vector<int64_t>{0}},
               {"operands", std::move(names)},
               {"replies", int64_t{0}}});
    return b.status();
  };
  EXPECT_OK(build({0}, "call/v3"));
  EXPECT_THAT(build({3}, "call/v3"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("must lie in [0, 2], got 3")));
  EXPECT_THAT(build({0, 0}, "call/v3"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("'division' must have an entry for each")));
  EXPECT_THAT(build({0}, "call/v3;call/v4"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("each of 1 operands, got 2 names")));
}

}  // namespace
}  // namespace gshard
