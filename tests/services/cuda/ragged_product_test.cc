// Tests the product kernels, block by block on the emulator, against
// tests/reference.

#include "services/cuda/kernels/ragged_product.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/ops/cast.h"
#include "tests/reference/ragged_dot.h"
#include "tests/services/cuda/emulated_kernels.h"
#include "tests/testing/tensors.h"

namespace gshard::cuda {
namespace {

static_assert(BlocksAlong(10, int64_t{1} << 32) == 1);

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A tensor's elements between NaNs, which kernels must not read. With `shift`,
// not aligned to 16 bytes.
template <typename T>
class Guarded {
 public:
  explicit Guarded(const Tensor& tensor, int shift = 0)
      : shift_(shift), all_(tensor.size() + 2 * kGuard, Nan()) {
    std::copy_n(tensor.data<T>(), tensor.size(), data());
  }
  T* data() {
    const auto at = reinterpret_cast<uintptr_t>(all_.data() + kGuard / 2);
    return all_.data() + kGuard / 2 + (16 - at % 16) % 16 / sizeof(T) + shift_;
  }

 private:
  static constexpr size_t kGuard = 64;
  static T Nan() {
    if constexpr (std::is_same_v<T, float>)
      return kNan;
    else
      return ToBFloat16(kNan);
  }
  const int shift_;
  std::vector<T> all_;
};

// A buffer for results: NaN until written, between NaNs that must remain.
template <typename T>
class Written {
 public:
  explicit Written(Dims dims) : dims_(std::move(dims)) {
    Tensor nothing(ElementTypeOf<T>::value, {NumElements(dims_) + 2 * kGuard});
    std::memset(nothing.raw(), 0xff, nothing.bytes());
    all_ = nothing;
  }
  T* data() { return all_.data<T>() + kGuard; }
  // The results; fails if anything was written beside them.
  Tensor Take() {
    const int64_t size = NumElements(dims_);
    for (int64_t i = 0; i < kGuard; ++i) {
      for (const int64_t at : {i, kGuard + size + i}) {
        EXPECT_TRUE(std::isnan(Value(all_.data<T>()[at]))) << at;
      }
    }
    Tensor taken(ElementTypeOf<T>::value, dims_);
    std::copy_n(data(), size, taken.data<T>());
    return taken;
  }

 private:
  static constexpr int64_t kGuard = 32;
  static float Value(float x) { return x; }
  static float Value(BFloat16 x) { return ToFloat(x); }
  Dims dims_;
  Tensor all_;
};

struct Sizes {
  std::vector<int32_t> groups;
  int64_t k;
  int64_t n;
  int64_t rows() const {
    return std::accumulate(groups.begin(), groups.end(), int64_t{0});
  }
  int64_t experts() const { return std::ssize(groups); }
  Tensor GroupSizes() const { return Tensor::Ints({experts()}, groups); }
};

void PrintTo(const Sizes& s, std::ostream* out) {
  *out << ::testing::PrintToString(s.groups) << " K " << s.k << " N " << s.n;
}

template <typename T>
Tensor Random(Dims dims, uint64_t seed) {
  return Cast(RandomTensor(std::move(dims), seed), ElementTypeOf<T>::value);
}

enum class Tiles { kLarge, kSmall };

std::vector<RaggedTile> TilesOf(const Sizes& s, int rows) {
  return RaggedTiles(s.groups, rows, /*above=*/0,
                     std::numeric_limits<int32_t>::max());
}

void RunTiles(RaggedProduct<BFloat16> p, const Sizes& s, Tiles tiles,
              uint64_t seed) {
  const std::vector<RaggedTile> list =
      TilesOf(s, tiles == Tiles::kLarge ? LargeTile::kRows : SmallTile::kRows);
  p.tiles = list.data();
  p.num_tiles = std::ssize(list);
  tiles == Tiles::kLarge ? Emulate<LargeTile>(p, seed)
                         : Emulate<SmallTile>(p, seed);
}

void RunTiles(RaggedProduct<float> p, const Sizes& s, Tiles, uint64_t seed) {
  const std::vector<RaggedTile> list = TilesOf(s, FloatTile::kRows);
  p.tiles = list.data();
  p.num_tiles = std::ssize(list);
  Emulate(p, seed);
}

template <typename T>
Tensor Product(const Tensor& rows, const Tensor& weights, const Sizes& s,
               bool transposed, Tiles tiles, int shift = 0, uint64_t seed = 1) {
  Guarded<T> a(rows, shift), b(weights, shift);
  Written<float> out({s.rows(), s.n});
  RaggedProduct<T> p = {};
  p.rows = a.data();
  p.weights = b.data();
  p.transposed = transposed;
  p.k = s.k;
  p.n = s.n;
  p.out = out.data();
  RunTiles(p, s, tiles, seed);
  return out.Take();
}

class RaggedProductTest : public ::testing::TestWithParam<Sizes> {};

INSTANTIATE_TEST_SUITE_P(
    Sizes, RaggedProductTest,
    ::testing::Values(Sizes{{5}, 32, 16}, Sizes{{1}, 8, 8},
                      Sizes{{0, 3, 0, 0, 17, 1}, 40, 136},
                      Sizes{{130, 0, 16}, 72, 24}, Sizes{{7, 2}, 200, 8},
                      Sizes{{3, 4}, 13, 9},     // only the first row is aligned
                      Sizes{{2, 20}, 33, 130},  // here, too
                      Sizes{{0, 0}, 8, 8}));

// All kinds of products match the reference, also at unaligned addresses.
TEST_P(RaggedProductTest, IsTheReference) {
  const Sizes& s = GetParam();
  const Tensor sizes = s.GroupSizes();
  const auto check = [&]<typename T>(T) {
    const Tensor rows = Random<T>({s.rows(), s.k}, 1);
    const Tensor weights = Random<T>({s.experts(), s.k, s.n}, 2);
    const Tensor transposed = Random<T>({s.experts(), s.n, s.k}, 3);
    for (const Tiles tiles : {Tiles::kLarge, Tiles::kSmall}) {
      for (const int shift : {0, 1}) {
        EXPECT_TRUE(
            TensorNear(Product<T>(rows, weights, s, false, tiles, shift),
                       reference::RaggedDot(rows, weights, sizes), 1e-5f));
        EXPECT_TRUE(TensorNear(
            Product<T>(rows, transposed, s, true, tiles, shift),
            reference::RaggedDotRowsGradient(rows, transposed, sizes), 1e-5f));
      }
    }
  };
  check(BFloat16());
  check(0.0f);
}

TEST_P(RaggedProductTest, WeightsGradientIsTheReference) {
  const Sizes& s = GetParam();
  const std::vector<int64_t> offsets = GroupOffsets(s.groups);
  const auto check = [&]<typename T>(T) {
    const Tensor rows = Random<T>({s.rows(), s.k}, 1);
    const Tensor dresult = Random<T>({s.rows(), s.n}, 2);
    for (const int shift : {0, 1}) {
      Guarded<T> a(rows, shift), b(dresult, shift);
      Written<float> out({s.experts(), s.k, s.n});
      Emulate(RaggedWeightsGradient<T>{a.data(), b.data(), offsets.data(),
                                       s.experts(), s.k, s.n, out.data()});
      EXPECT_TRUE(TensorNear(
          out.Take(),
          reference::RaggedDotWeightsGradient(rows, dresult, s.GroupSizes()),
          1e-5f));
    }
  };
  check(BFloat16());
  check(0.0f);
}

// A row's bits do not depend on other rows, its position or the tile size.
TEST(RaggedProductBitsTest, DoNotDependOnTheRowsBeside) {
  constexpr int64_t kK = 72, kN = 16;
  const auto check = [&]<typename T>(T) {
    const Tensor row = Random<T>({1, kK}, 7);
    const Tensor weights = Random<T>({1, kK, kN}, 8);
    const Tensor expected =
        Product<T>(row, weights, {{1}, kK, kN}, false, Tiles::kSmall);
    for (const int rows : {5, 16, 17, 130}) {
      const Sizes s = {{rows}, kK, kN};
      for (const int place : {0, rows / 2, rows - 1}) {
        Tensor among = Random<T>({rows, kK}, 100 + rows);
        std::copy_n(row.data<T>(), kK, among.data<T>() + place * kK);
        for (const Tiles tiles : {Tiles::kLarge, Tiles::kSmall}) {
          const Tensor all = Product<T>(among, weights, s, false, tiles);
          EXPECT_TRUE(TensorEqual(all.Rows(place, place + 1), expected))
              << place << " of " << rows;
        }
      }
    }
  };
  check(BFloat16());
  check(0.0f);
}

// NaNs in rows of other experts do not affect an expert's rows.
TEST(RaggedProductBitsTest, NeighboursMayBeAnything) {
  const Sizes s = {{3, 2, 4}, 24, 16};
  Tensor rows = Random<BFloat16>({9, 24}, 1);
  const Tensor weights = Random<BFloat16>({3, 24, 16}, 2);
  const Tensor expected =
      Product<BFloat16>(rows, weights, s, false, Tiles::kLarge);
  for (int i = 0; i < 3 * 24; ++i) rows.data<BFloat16>()[i] = ToBFloat16(kNan);
  for (int i = 5 * 24; i < 9 * 24; ++i) {
    rows.data<BFloat16>()[i] = ToBFloat16(kNan);
  }
  const Tensor got = Product<BFloat16>(rows, weights, s, false, Tiles::kLarge);
  EXPECT_TRUE(TensorEqual(got.Rows(3, 5), expected.Rows(3, 5)));
  EXPECT_TRUE(std::isnan(got.f32()[0]));
}

// The order of threads between two barriers does not change results.
TEST(RaggedProductBitsTest, DoNotDependOnTheOrderOfThreads) {
  const Sizes s = {{20, 9}, 136, 40};
  const Tensor rows = Random<BFloat16>({29, 136}, 1);
  const Tensor weights = Random<BFloat16>({2, 136, 40}, 2);
  const Tensor expected =
      Product<BFloat16>(rows, weights, s, false, Tiles::kSmall);
  for (uint64_t seed = 2; seed < 6; ++seed) {
    EXPECT_TRUE(TensorEqual(
        Product<BFloat16>(rows, weights, s, false, Tiles::kSmall, 0, seed),
        expected));
  }
}

// A fused epilogue gives the results of separate operators.
TEST(RaggedProductEndTest, IsTheOperatorsOneByOne) {
  const Sizes s = {{3, 0, 5}, 24, 17};
  const Tensor rows = Random<BFloat16>({8, 24}, 1);
  const Tensor weights = Random<BFloat16>({3, 24, 17}, 2);
  const Tensor bias = RandomTensor({3, 17}, 3);
  const Tensor sums = Product<BFloat16>(rows, weights, s, false, Tiles::kSmall);
  for (const bool with_bias : {false, true}) {
    Tensor expected = sums.Clone();
    for (int64_t i = 0; with_bias && i < expected.size(); ++i) {
      const int64_t expert = i / 17 < 3 ? 0 : 2;
      expected.f32()[i] += bias.f32()[expert * 17 + i % 17];
    }
    for (const bool relu : {false, true}) {
      Guarded<BFloat16> a(rows), b(weights);
      Guarded<float> added(bias);
      Written<float> out({8, 17});
      Written<BFloat16> rounded({8, 17});
      RaggedProduct<BFloat16> p = {};
      p.rows = a.data();
      p.weights = b.data();
      p.k = 24;
      p.n = 17;
      p.bias = with_bias ? added.data() : nullptr;
      p.relu = relu;
      p.out = out.data();
      RunTiles(p, s, Tiles::kSmall, 1);
      p.out = nullptr;
      p.rounded_out = rounded.data();
      RunTiles(p, s, Tiles::kSmall, 1);
      Tensor floats = expected.Clone();
      for (int64_t i = 0; relu && i < floats.size(); ++i) {
        floats.f32()[i] = std::max(floats.f32()[i], 0.0f);
      }
      EXPECT_TRUE(TensorEqual(out.Take(), floats));
      EXPECT_TRUE(
          TensorEqual(rounded.Take(), Cast(floats, ElementType::kBFloat16)));
    }
  }
}

TEST(RaggedTilesTest, CoverTheGroupsThatAreAsked) {
  const std::vector<int32_t> groups = {0, 40, 3, 0, 33};
  const auto text = [&](int tile_rows, int above, int most) {
    std::string tiles;
    for (const RaggedTile& t : RaggedTiles(groups, tile_rows, above, most)) {
      absl::StrAppend(&tiles, t.expert, ":", t.first_row, "+", t.rows, " ");
    }
    return tiles;
  };
  EXPECT_EQ(text(32, 0, 1000), "1:0+32 1:32+8 2:40+3 4:43+32 4:75+1 ");
  EXPECT_EQ(text(32, 32, 1000), "1:0+32 1:32+8 4:43+32 4:75+1 ");
  EXPECT_EQ(text(2, 0, 32), "2:40+2 2:42+1 ");
  EXPECT_EQ(text(16, 40, 1000), "");
  EXPECT_THAT(GroupOffsets(groups),
              ::testing::ElementsAre(0, 0, 40, 43, 43, 76));
}

}  // namespace
}  // namespace gshard::cuda
