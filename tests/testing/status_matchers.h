// ASSERT_OK, ASSERT_OK_AND_ASSIGN and StatusIs, which Debian 12's Abseil lacks.
// There is no matcher for "any error": a test names the expected code.

#ifndef TESTS_TESTING_STATUS_MATCHERS_H_
#define TESTS_TESTING_STATUS_MATCHERS_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gshard {

inline const absl::Status& GetStatus(const absl::Status& status) {
  return status;
}
template <typename T>
const absl::Status& GetStatus(const absl::StatusOr<T>& value) {
  return value.status();
}

MATCHER_P2(StatusIs, code, message,
           "has code " + absl::StatusCodeToString(code)) {
  const absl::Status& status = GetStatus(arg);
  *result_listener << "which is " << status.ToString();
  return status.code() == code &&
         ::testing::ExplainMatchResult(message, std::string(status.message()),
                                       result_listener);
}

}  // namespace gshard

#define ASSERT_OK(expression)                      \
  do {                                             \
    const auto& _value = (expression);             \
    ASSERT_TRUE(::gshard::GetStatus(_value).ok())  \
        << ::gshard::GetStatus(_value).ToString(); \
  } while (false)
#define EXPECT_OK(expression)                      \
  do {                                             \
    const auto& _value = (expression);             \
    EXPECT_TRUE(::gshard::GetStatus(_value).ok())  \
        << ::gshard::GetStatus(_value).ToString(); \
  } while (false)

#define GSHARD_TEST_CONCAT_INNER(a, b) a##b
#define GSHARD_TEST_CONCAT(a, b) GSHARD_TEST_CONCAT_INNER(a, b)
#define GSHARD_ASSERT_OK_AND_ASSIGN(holder, target, expression) \
  auto holder = (expression);                                   \
  ASSERT_TRUE(holder.ok()) << holder.status().ToString();       \
  target = *std::move(holder)
#define ASSERT_OK_AND_ASSIGN(target, expression)                        \
  GSHARD_ASSERT_OK_AND_ASSIGN(GSHARD_TEST_CONCAT(_statusor_, __LINE__), \
                              target, expression)

#endif  // TESTS_TESTING_STATUS_MATCHERS_H_
