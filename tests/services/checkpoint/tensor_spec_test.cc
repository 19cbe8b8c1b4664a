#include "services/checkpoint/tensor_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

TEST(TensorSpecTest, CountsBytes) {
  const auto bytes = [](ElementType type, std::vector<int64_t> dims) {
    return TensorBytes(type, dims).value();
  };
  EXPECT_EQ(bytes(ElementType::kFloat32, {}), 4u);
  EXPECT_EQ(bytes(ElementType::kFloat64, {2, 3}), 48u);
  EXPECT_EQ(bytes(ElementType::kUint8, {5, 0, 7}), 0u);
}

TEST(TensorSpecTest, RefusesShapesThatOverflow) {
  const auto refused = [](std::vector<int64_t> dims, const char* what) {
    EXPECT_THAT(TensorBytes(ElementType::kFloat32, dims),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what)));
  };
  refused({-1}, "sizes >= 0, got [-1]");
  refused({0, -5}, "sizes >= 0");
  refused({int64_t{1} << 32, int64_t{1} << 32}, "at most 2^60 bytes");
  refused({int64_t{1} << 62, 4, 2}, "at most 2^60 bytes");
  // The product is 0, so a reader that only multiplies would accept it.
  refused({0, int64_t{1} << 62, int64_t{1} << 62}, "at most 2^60 bytes");
  refused(std::vector<int64_t>(9, 1), "at most 8 dimensions, got 9");
}

TEST(TensorSpecTest, TakesAnyReasonableName) {
  for (const char* name : {"a", "encoder/layer_3/moe/wi/2047", "with space",
                           "quote\"back\\slash", "\u00fcml\u00e4ut",
                           "\u6f22\u5b57", "../../etc/passwd", "{}", "__x__"}) {
    EXPECT_OK(CheckTensorName(name));
  }
  EXPECT_OK(CheckTensorName(std::string(512, 'x')));
  for (const std::string& name :
       {std::string(), std::string(513, 'x'), std::string("a\nb"),
        std::string("nul\0", 4), std::string("\x7f"), std::string("\xff"),
        std::string("__metadata__")}) {
    EXPECT_THAT(CheckTensorName(name),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("a tensor's name must")));
  }
}

}  // namespace
}  // namespace gshard
