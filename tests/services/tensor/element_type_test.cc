#include "services/tensor/element_type.h"

#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

template <typename T>
void ExpectType(ElementType type, absl::string_view name) {
  EXPECT_EQ(ElementTypeOf<T>::value, type);
  EXPECT_EQ(ElementSize(type), sizeof(T));
  EXPECT_EQ(ElementTypeName(type), name);
  ASSERT_OK_AND_ASSIGN(const ElementType parsed, ParseElementType(name));
  EXPECT_EQ(parsed, type);
}

TEST(ElementTypeTest, NamesSizesAndTypesAgree) {
  ExpectType<float>(ElementType::kFloat32, "f32");
  ExpectType<double>(ElementType::kFloat64, "f64");
  ExpectType<int32_t>(ElementType::kInt32, "i32");
  ExpectType<int64_t>(ElementType::kInt64, "i64");
  ExpectType<uint8_t>(ElementType::kUint8, "u8");
  ExpectType<BFloat16>(ElementType::kBFloat16, "bf16");
}

TEST(ElementTypeTest, UnknownNamesAreRefusedByName) {
  for (const char* name : {"", "f16", "F32", "f32 "}) {
    EXPECT_THAT(ParseElementType(name),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(std::string("got '") + name + "'")));
  }
}

}  // namespace
}  // namespace gshard
