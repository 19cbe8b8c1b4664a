// The contract of every holder of a ParameterShard, whatever makes its sums.

#ifndef TESTS_SERVICES_TRAIN_STEP_CONTRACT_H_
#define TESTS_SERVICES_TRAIN_STEP_CONTRACT_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/train/parameter_store.h"
#include "tests/testing/status_matchers.h"

namespace gshard {

// A holder at step 0.
struct StepHolder {
  // Adds the gradients of all microbatches of a step.
  std::function<void(int64_t step)> fill;
  std::function<absl::StatusOr<std::vector<SquaredNorm>>(int64_t step)> prepare;
  std::function<absl::Status(int64_t step, double gradient_scale,
                             double learning_rate, bool skip)>
      commit;
  // The bytes of all parameters and of their optimizer state, or a digest.
  std::function<std::map<std::string, std::string>()> contents;
};

inline std::map<std::string, std::string> BytesOf(
    const std::vector<NamedTensor>& tensors) {
  std::map<std::string, std::string> bytes;
  for (const NamedTensor& named : tensors) {
    bytes[named.name].assign(reinterpret_cast<const char*>(named.tensor.raw()),
                             named.tensor.bytes());
  }
  return bytes;
}

inline void ExpectTransactions(const StepHolder& holder) {
  constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  using ::testing::HasSubstr;
  const auto total = [](const absl::StatusOr<std::vector<SquaredNorm>>& norms) {
    EXPECT_OK(norms);
    return norms.ok() ? TotalSquaredNorm(*norms) : 0.0;
  };
  const auto first = holder.contents();
  ASSERT_FALSE(first.empty());
  EXPECT_THAT(holder.commit(1, 1.0, 1.0, false),
              StatusIs(kPrecondition, HasSubstr("step 1 is not prepared")));
  EXPECT_THAT(holder.commit(0, 1.0, 1.0, false),
              StatusIs(kPrecondition, HasSubstr("")));
  holder.fill(1);
  EXPECT_THAT(holder.prepare(2),
              StatusIs(kPrecondition, HasSubstr("expected step 1, got 2")));
  EXPECT_THAT(holder.prepare(0),
              StatusIs(kPrecondition, HasSubstr("expected step 1, got 0")));
  const double norm = total(holder.prepare(1));
  EXPECT_GT(norm, 0.0);
  EXPECT_EQ(total(holder.prepare(1)), norm);
  EXPECT_EQ(holder.contents(), first);

  for (const double number : {std::numeric_limits<double>::quiet_NaN(),
                              std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(holder.commit(1, number, 0.1, false),
                StatusIs(kInvalid, HasSubstr("gradient_scale")));
    EXPECT_THAT(holder.commit(1, 0.1, number, false),
                StatusIs(kInvalid, HasSubstr("learning_rate")));
  }
  EXPECT_THAT(holder.commit(2, 0.1, 0.1, false),
              StatusIs(kPrecondition, HasSubstr("step 2 is not prepared")));
  EXPECT_EQ(holder.contents(), first);

  ASSERT_OK(holder.commit(1, 0.1, 0.1, false));
  const auto second = holder.contents();
  EXPECT_NE(second, first);
  ASSERT_OK(holder.commit(1, 0.1, 0.1, false));
  EXPECT_EQ(holder.contents(), second);
  EXPECT_THAT(holder.prepare(1),
              StatusIs(kPrecondition, HasSubstr("expected step 2, got 1")));
  EXPECT_THAT(holder.commit(2, 0.1, 0.1, false),
              StatusIs(kPrecondition, HasSubstr("step 2 is not prepared")));

  holder.fill(2);
  EXPECT_GT(total(holder.prepare(2)), 0.0);
  ASSERT_OK(holder.commit(2, 0.0, 0.0, /*skip=*/true));
  ASSERT_OK(holder.commit(2, 0.0, 0.0, /*skip=*/true));
  EXPECT_THAT(holder.commit(1, 0.1, 0.1, false),
              StatusIs(kPrecondition, HasSubstr("")));
  EXPECT_EQ(holder.contents(), second);

  holder.fill(3);
  EXPECT_GT(total(holder.prepare(3)), 0.0);
  ASSERT_OK(holder.commit(3, 0.1, 0.1, false));
  EXPECT_NE(holder.contents(), second);
}

}  // namespace gshard

#endif  // TESTS_SERVICES_TRAIN_STEP_CONTRACT_H_
