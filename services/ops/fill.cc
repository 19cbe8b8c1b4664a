#include "services/ops/fill.h"

#include <algorithm>
#include <cmath>

#include "services/base/check.h"

namespace gshard {
namespace {

template <typename T>
void FillAs(double value, std::byte* to, int64_t count) {
  std::fill_n(reinterpret_cast<T*>(to), count, static_cast<T>(value));
}

}  // namespace

bool IsElement(ElementType type, double value) {
  // `highest` is exclusive: as a power of two it is exact as a double.
  const auto integer_within = [value](double lowest, double highest) {
    return value >= lowest && value < highest && std::trunc(value) == value;
  };
  switch (type) {
    case ElementType::kFloat32:
    case ElementType::kFloat64:
    case ElementType::kBFloat16:
      return true;
    case ElementType::kInt32:
      return integer_within(-0x1p31, 0x1p31);
    case ElementType::kInt64:
      return integer_within(-0x1p63, 0x1p63);
    case ElementType::kUint8:
      return integer_within(0, 0x1p8);
    case ElementType::kInt8:
      break;
  }
  return false;
}

void Fill(ElementType type, double value, std::byte* to, int64_t count) {
  CHECK(IsElement(type, value));
  switch (type) {
    case ElementType::kFloat32:
      return FillAs<float>(value, to, count);
    case ElementType::kFloat64:
      return FillAs<double>(value, to, count);
    case ElementType::kInt32:
      return FillAs<int32_t>(value, to, count);
    case ElementType::kInt64:
      return FillAs<int64_t>(value, to, count);
    case ElementType::kUint8:
      return FillAs<uint8_t>(value, to, count);
    case ElementType::kBFloat16:
      std::fill_n(reinterpret_cast<BFloat16*>(to), count,
                  ToBFloat16(static_cast<float>(value)));
      return;
    case ElementType::kInt8:  // never row-major
      break;
  }
}

}  // namespace gshard
