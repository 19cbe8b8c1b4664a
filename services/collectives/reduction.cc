#include "services/collectives/reduction.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"

namespace gshard {
namespace {

// Block size: each block is reduced over all parts before the next, so that
// partial results stay in the L1 cache.
constexpr int64_t kBlock = 1024;

struct Sum {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      using Unsigned = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<Unsigned>(a) +
                            static_cast<Unsigned>(b));
    } else {
      return a + b;
    }
  }
};
struct Max {
  template <typename T>
  T operator()(T a, T b) const {
    return a != a || a > b ? a : b;
  }
};

template <typename T, typename Fold>
void Reduce(absl::Span<const std::byte* const> parts, int64_t count,
            std::byte* result) {
  T* const out = reinterpret_cast<T*>(result);
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t end = std::min(count, begin + kBlock);
    if (parts[0] != result) {
      std::memcpy(out + begin, reinterpret_cast<const T*>(parts[0]) + begin,
                  (end - begin) * sizeof(T));
    }
    for (size_t r = 1; r < parts.size(); ++r) {
      const T* const part = reinterpret_cast<const T*>(parts[r]);
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) out[i] = Fold()(out[i], part[i]);
    }
  }
}

template <typename T>
void Reduce(Reduction reduction, absl::Span<const std::byte* const> parts,
            int64_t count, std::byte* result) {
  switch (reduction) {
    case Reduction::kSum:
      return Reduce<T, Sum>(parts, count, result);
    case Reduction::kMax:
      return Reduce<T, Max>(parts, count, result);
  }
}

}  // namespace

absl::Status CheckReducible(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
    case ElementType::kFloat64:
    case ElementType::kInt32:
    case ElementType::kInt64:
      return absl::OkStatus();
    case ElementType::kUint8:
    case ElementType::kBFloat16:
    case ElementType::kInt8:
      break;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "expected f32, f64, i32 or i64 to reduce, got ", ElementTypeName(type)));
}

void ReduceInRankOrder(ElementType type, Reduction reduction,
                       absl::Span<const std::byte* const> parts, int64_t count,
                       std::byte* result) {
  CHECK(!parts.empty());
  switch (type) {
    case ElementType::kFloat32:
      return Reduce<float>(reduction, parts, count, result);
    case ElementType::kFloat64:
      return Reduce<double>(reduction, parts, count, result);
    case ElementType::kInt32:
      return Reduce<int32_t>(reduction, parts, count, result);
    case ElementType::kInt64:
      return Reduce<int64_t>(reduction, parts, count, result);
    case ElementType::kUint8:
    case ElementType::kBFloat16:
    case ElementType::kInt8:
      break;
  }
  CHECK(CheckReducible(type).ok());
}

}  // namespace gshard
