#include "services/base/status_macros.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

absl::StatusOr<std::unique_ptr<int>> Box(int value) {
  if (value < 0) return absl::OutOfRangeError("expected >= 0, got -1");
  return std::make_unique<int>(value);
}

absl::StatusOr<int> Sum(int a, int b) {
  ASSIGN_OR_RETURN(const std::unique_ptr<int> x, Box(a));
  ASSIGN_OR_RETURN(const std::unique_ptr<int> y, Box(b));
  return *x + *y;
}

TEST(StatusMacrosTest, AssignOrReturnMovesTheValueOut) {
  ASSERT_OK_AND_ASSIGN(const int sum, Sum(2, 3));
  EXPECT_EQ(sum, 5);
}

TEST(StatusMacrosTest, AssignOrReturnReturnsTheFirstErrorUnchanged) {
  EXPECT_THAT(Sum(2, -1),
              StatusIs(absl::StatusCode::kOutOfRange, "expected >= 0, got -1"));
  EXPECT_THAT(Sum(-1, 2),
              StatusIs(absl::StatusCode::kOutOfRange, "expected >= 0, got -1"));
}

TEST(StatusMacrosTest, AssignOrReturnSetsAnExistingVariable) {
  const auto doubled = [](int value) -> absl::StatusOr<int> {
    std::unique_ptr<int> box;
    ASSIGN_OR_RETURN(box, Box(value));
    return 2 * *box;
  };
  ASSERT_OK_AND_ASSIGN(const int result, doubled(4));
  EXPECT_EQ(result, 8);
}

TEST(StatusMacrosTest, ReturnIfErrorEvaluatesOnceAndStopsAtAnError) {
  int calls = 0;
  bool reached_end = false;
  const auto run = [&](const absl::Status& status) -> absl::Status {
    const auto count = [&] {
      ++calls;
      return status;
    };
    RETURN_IF_ERROR(count());
    reached_end = true;
    return absl::OkStatus();
  };
  EXPECT_THAT(run(absl::DataLossError("cut")),
              StatusIs(absl::StatusCode::kDataLoss, "cut"));
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(reached_end);

  EXPECT_OK(run(absl::OkStatus()));
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(reached_end);
}

TEST(StatusMacrosTest, AnnotateKeepsTheCodeAndSaysWhere) {
  EXPECT_THAT(Annotate(absl::NotFoundError("no such file"), "step 12"),
              StatusIs(absl::StatusCode::kNotFound, "step 12: no such file"));
  EXPECT_OK(Annotate(absl::OkStatus(), "step 12"));
}

}  // namespace
}  // namespace gshard
