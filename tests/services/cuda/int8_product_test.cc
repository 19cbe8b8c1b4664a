// Tests the int8 kernels, block by block on the emulator, against the CPU's:
// all results have its bits.

#include "services/cuda/kernels/int8_product.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "services/base/check.h"
#include "services/cuda/kernels/int8_rows.h"
#include "services/ops/cast.h"
#include "services/ops/elementwise.h"
#include "services/ops/embedding.h"
#include "services/ops/int8_panel.h"
#include "services/ops/ragged_dot.h"
#include "tests/services/cuda/emulated_kernels.h"
#include "tests/testing/tensors.h"

namespace gshard::cuda {
namespace {

constexpr float kInfinite = std::numeric_limits<float>::infinity();

// Weights [E, k, n], rounded.
Tensor RoundedWeights(const Tensor& weights) {
  const int64_t experts = weights.dim(0);
  Tensor panels = NewInt8Panels(weights.dims(), experts, weights.dim(1));
  for (int64_t e = 0; e < experts; ++e) {
    RoundMatrix(weights.Rows(e, e + 1), e, /*transposed=*/false, panels);
  }
  return panels;
}

// A copy of panels that ends where memory does: to read beyond it is fatal.
class LastPanels {
 public:
  explicit LastPanels(const Tensor& panels) {
    const size_t page = sysconf(_SC_PAGESIZE);
    const size_t size = (panels.bytes() + page - 1) / page * page;
    bytes_ = size + page;
    void* const memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    memory_ = static_cast<std::byte*>(memory);
    CHECK(mprotect(memory_ + size, page, PROT_NONE) == 0);
    data_ = memory_ + size - panels.bytes();
    std::memcpy(data_, panels.buffer(), panels.bytes());
  }
  ~LastPanels() { munmap(memory_, bytes_); }
  LastPanels(const LastPanels&) = delete;
  LastPanels& operator=(const LastPanels&) = delete;

  const int8_t* data() const { return reinterpret_cast<int8_t*>(data_); }

 private:
  size_t bytes_;
  std::byte* memory_;
  std::byte* data_;
};

// Rows [R, k], rounded by the kernel, between bytes that must stay.
class RoundedRows {
 public:
  explicit RoundedRows(const Tensor& x)
      : rows_(x.dim(0)),
        k_(x.dim(1)),
        bytes_(rows_ * Int8RowBytes(k_) + 3 * kGuard, kUnwritten),
        scales_(rows_ + 2 * kGuard, kGuardScale) {
    EmulateRows(RoundRows{x.f32(), k_, data(), scales()}, rows_);
    for (size_t i = 0; i < kGuard; ++i) {
      EXPECT_EQ(bytes_[i], kUnwritten);
      EXPECT_EQ(bytes_[bytes_.size() - 1 - i], kUnwritten);
      EXPECT_EQ(scales_[i], kGuardScale);
      EXPECT_EQ(scales_[scales_.size() - 1 - i], kGuardScale);
    }
  }
  int8_t* data() {
    const auto at = reinterpret_cast<uintptr_t>(bytes_.data());
    return bytes_.data() + kGuard + (16 - at % 16) % 16;
  }
  float* scales() { return scales_.data() + kGuard; }

 private:
  static constexpr size_t kGuard = 64;
  static constexpr int8_t kUnwritten = 0x55;
  static constexpr float kGuardScale = 77.0f;
  const int64_t rows_, k_;
  std::vector<int8_t> bytes_;
  std::vector<float> scales_;
};

struct Int8Sizes {
  std::vector<int32_t> groups;
  int64_t k, n;
  int64_t rows() const {
    return std::accumulate(groups.begin(), groups.end(), int64_t{0});
  }
};

void PrintTo(const Int8Sizes& s, std::ostream* out) {
  *out << ::testing::PrintToString(s.groups) << " K " << s.k << " N " << s.n;
}

void RunInt8Tiles(RaggedProduct<int8_t> p, const std::vector<int32_t>& groups,
                  bool large, uint64_t seed) {
  const std::vector<RaggedTile> tiles =
      RaggedTiles(groups, large ? LargeInt8Tile::kRows : SmallInt8Tile::kRows,
                  0, std::numeric_limits<int32_t>::max());
  p.tiles = tiles.data();
  p.num_tiles = std::ssize(tiles);
  large ? Emulate<LargeInt8Tile>(p, seed) : Emulate<SmallInt8Tile>(p, seed);
}

// Rows [R, k] times panels for weights [E, k, n]; fails if what is not an
// element is written.
Tensor Int8ProductOf(const Tensor& rows, const Tensor& panels,
                     const std::vector<int32_t>& groups, bool large,
                     uint64_t seed = 1) {
  constexpr int64_t kGuard = 64;
  const int64_t k = rows.dim(1), n = panels.dim(2);
  RoundedRows a(rows);
  const LastPanels b(panels);
  const int64_t size = rows.dim(0) * n;
  std::vector<float> out(size + 2 * kGuard, 77.0f);
  RaggedProduct<int8_t> p = {};
  p.rows = a.data();
  p.row_scales = a.scales();
  p.weights = b.data();
  p.k = k;
  p.n = n;
  p.out = out.data() + kGuard;
  RunInt8Tiles(p, groups, large, seed);
  for (int64_t i = 0; i < kGuard; ++i) {
    EXPECT_EQ(out[i], 77.0f);
    EXPECT_EQ(out[kGuard + size + i], 77.0f);
  }
  Tensor result(ElementType::kFloat32, {rows.dim(0), n});
  std::copy_n(p.out, size, result.f32());
  return result;
}

Tensor OnTheCpu(const Tensor& rows, const Tensor& panels,
                const std::vector<int32_t>& groups) {
  return RaggedDot(rows, panels,
                   Tensor::Ints({static_cast<int64_t>(groups.size())}, groups));
}

class Int8ProductTest : public ::testing::TestWithParam<Int8Sizes> {};

// k around the words, rows, mma steps and stages that it is divided into; n
// around panels and tiles.
INSTANTIATE_TEST_SUITE_P(
    Shapes, Int8ProductTest,
    ::testing::Values(Int8Sizes{{5}, 32, 16}, Int8Sizes{{1}, 1, 1},
                      Int8Sizes{{0, 3, 0, 0, 17, 1}, 40, 136},
                      Int8Sizes{{130, 0, 33}, 72, 24}, Int8Sizes{{3, 4}, 13, 9},
                      Int8Sizes{{0, 0}, 8, 8}, Int8Sizes{{}, 8, 8},
                      Int8Sizes{{7}, 63, 47}, Int8Sizes{{7}, 64, 48},
                      Int8Sizes{{7}, 65, 49}, Int8Sizes{{2, 2}, 257, 96},
                      Int8Sizes{{2, 2}, 66, 97}, Int8Sizes{{20}, 515, 145},
                      Int8Sizes{{16}, 31, 193}));

TEST_P(Int8ProductTest, HasTheCpusBits) {
  const Int8Sizes& s = GetParam();
  // RoundMatrix() takes no empty weights.
  const int64_t experts = std::max<int64_t>(1, std::ssize(s.groups));
  const Tensor rows = RandomTensor({s.rows(), s.k}, 1);
  const Tensor panels = RoundedWeights(RandomTensor({experts, s.k, s.n}, 2));
  const Tensor expected = s.groups.empty()
                              ? Tensor(ElementType::kFloat32, {0, s.n})
                              : OnTheCpu(rows, panels, s.groups);
  for (const bool large : {true, false}) {
    EXPECT_TRUE(
        TensorEqual(Int8ProductOf(rows, panels, s.groups, large), expected));
  }
}

// The sums of the largest numbers of the deepest matrix fit.
TEST(Int8ProductBitsTest, SumsOfTheDeepestMatrixFit) {
  Tensor rows(ElementType::kFloat32, {2, kMaxInt8Depth});
  std::fill_n(rows.f32(), kMaxInt8Depth, 1.0f);
  std::fill_n(rows.f32() + kMaxInt8Depth, kMaxInt8Depth, -1.0f);
  Tensor weights(ElementType::kFloat32, {1, kMaxInt8Depth, 1});
  std::fill_n(weights.f32(), kMaxInt8Depth, 1.0f);
  const Tensor panels = RoundedWeights(weights);
  EXPECT_TRUE(TensorEqual(Int8ProductOf(rows, panels, {2}, /*large=*/false),
                          OnTheCpu(rows, panels, {2})));
}

// What is not finite, zero or next to nothing stays so in its row or column.
TEST(Int8ProductBitsTest, RowsAndColumnsMayBeAnything) {
  Tensor rows = RandomTensor({8, 70}, 1);
  Tensor weights = RandomTensor({2, 70, 50}, 2);
  float* const x = rows.f32();
  x[0 * 70 + 69] = std::nanf("");
  x[1 * 70 + 33] = kInfinite;
  x[2 * 70 + 0] = -kInfinite;
  std::fill_n(x + 3 * 70, 70, 0.0f);
  std::fill_n(x + 4 * 70, 70, 1e-40f);
  x[5 * 70 + 7] = std::numeric_limits<float>::max();
  weights.f32()[9 * 50 + 49] = kInfinite;
  for (int64_t i = 0; i < 70; ++i) weights.f32()[i * 50 + 3] = -0.0f;
  const Tensor panels = RoundedWeights(weights);
  const std::vector<int32_t> groups = {6, 2};
  const Tensor expected = OnTheCpu(rows, panels, groups);
  for (const bool large : {true, false}) {
    const Tensor got = Int8ProductOf(rows, panels, groups, large);
    EXPECT_TRUE(TensorEqual(got, expected));
    for (int64_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(std::isnan(got.f32()[i]),
                i / 50 < 3 || (i / 50 < 6 && i % 50 == 49))
          << i;
    }
  }
}

TEST(Int8ProductBitsTest, DoNotDependOnTheRowsBeside) {
  constexpr int64_t kK = 72, kN = 60;
  const Tensor row = RandomTensor({1, kK}, 7);
  const Tensor panels = RoundedWeights(RandomTensor({1, kK, kN}, 8));
  const Tensor expected = Int8ProductOf(row, panels, {1}, /*large=*/false);
  for (const int32_t count : {5, 17, 130}) {
    for (const int32_t place : {0, count / 2, count - 1}) {
      Tensor among = RandomTensor({count, kK}, 100 + count, /*scale=*/50.0f);
      std::copy_n(row.f32(), kK, among.f32() + place * kK);
      for (const bool large : {true, false}) {
        const Tensor all = Int8ProductOf(among, panels, {count}, large);
        EXPECT_TRUE(TensorEqual(all.Rows(place, place + 1), expected))
            << place << " of " << count;
      }
    }
  }
}

TEST(Int8ProductBitsTest, DoNotDependOnTheOrderOfThreads) {
  const Tensor rows = RandomTensor({29, 300}, 1);
  const Tensor panels = RoundedWeights(RandomTensor({2, 300, 100}, 2));
  const std::vector<int32_t> groups = {20, 9};
  const Tensor expected = OnTheCpu(rows, panels, groups);
  for (uint64_t seed = 2; seed < 5; ++seed) {
    for (const bool large : {true, false}) {
      EXPECT_TRUE(TensorEqual(Int8ProductOf(rows, panels, groups, large, seed),
                              expected));
    }
  }
}

// Offsets beyond 2^31 elements, of rows, experts and results.
TEST(Int8ProductBitsTest, OffsetsMayBeLarge) {
  constexpr int64_t kK = 70, kN = 50, kFirst = int64_t{1} << 33;
  constexpr int32_t kExpert = 1 << 26;
  const Tensor rows = RandomTensor({3, kK}, 1);
  const Tensor panels = RoundedWeights(RandomTensor({1, kK, kN}, 2));
  RoundedRows a(rows);
  Tensor out(ElementType::kFloat32, {3, kN});
  const auto back = [](auto* at, int64_t elements) {
    using T = decltype(at);
    return reinterpret_cast<T>(reinterpret_cast<uintptr_t>(at) -
                               static_cast<uintptr_t>(elements) * sizeof(*at));
  };
  const RaggedTile tile = {.first_row = kFirst, .expert = kExpert, .rows = 3};
  RaggedProduct<int8_t> p = {};
  p.rows = back(a.data(), kFirst * Int8RowBytes(kK));
  p.row_scales = back(a.scales(), kFirst);
  p.weights = back(panels.panels<int8_t>(), kExpert * Int8MatrixBytes(kK, kN));
  p.tiles = &tile;
  p.num_tiles = 1;
  p.k = kK;
  p.n = kN;
  p.out = back(out.f32(), kFirst * kN);
  Emulate<SmallInt8Tile>(p);
  EXPECT_TRUE(TensorEqual(out, OnTheCpu(rows, panels, {3})));
}

// A fused end gives the results of separate operators.
TEST(Int8ProductEndTest, IsTheOperatorsOneByOne) {
  const std::vector<int32_t> groups = {3, 0, 5};
  const Tensor rows = RandomTensor({8, 24}, 1), bias = RandomTensor({3, 51}, 3);
  const Tensor panels = RoundedWeights(RandomTensor({3, 24, 51}, 2));
  const Tensor expected = gshard::Relu(gshard::RaggedBiasAdd(
      OnTheCpu(rows, panels, groups), bias, Tensor::Ints({3}, groups)));
  RoundedRows a(rows);
  Tensor out(ElementType::kFloat32, {8, 51});
  Tensor rounded(ElementType::kBFloat16, {8, 51});
  RaggedProduct<int8_t> p = {};
  p.rows = a.data();
  p.row_scales = a.scales();
  p.weights = panels.panels<int8_t>();
  p.k = 24;
  p.n = 51;
  p.bias = bias.f32();
  p.relu = true;
  p.out = out.f32();
  RunInt8Tiles(p, groups, /*large=*/false, /*seed=*/1);
  EXPECT_TRUE(TensorEqual(out, expected));
  p.out = nullptr;
  p.rounded_out = rounded.data<BFloat16>();
  RunInt8Tiles(p, groups, /*large=*/true, /*seed=*/1);
  EXPECT_TRUE(TensorEqual(rounded, Cast(expected, ElementType::kBFloat16)));
}

// The CPU's elements and scales; rows end with zeros.
TEST(Int8RowsKernelTest, RoundsAsTheCpu) {
  for (const int64_t k : {1, 3, 16, 17, 127, 128, 130, 700}) {
    Tensor x = RandomTensor({11, k}, k);
    std::fill_n(x.f32() + 3 * k, k, 0.0f);
    x.f32()[5 * k + k / 2] = kInfinite;
    for (int64_t i = 0; i < k; ++i) {
      // Halves, which are rounded to even, and denormals.
      x.f32()[7 * k + i] = static_cast<float>(i % 128) - 0.5f;
      x.f32()[8 * k + i] *= 1e-37f;
    }
    x.f32()[7 * k] = 127.0f;
    RoundedRows rows(x);
    const Int8Rows expected(x.f32(), 11, k);
    EXPECT_EQ(std::memcmp(rows.scales(), expected.scales(), 11 * 4), 0) << k;
    for (int64_t r = 0; r < 11; ++r) {
      const int8_t* const row = rows.data() + r * Int8RowBytes(k);
      for (int64_t i = 0; i < Int8RowBytes(k); ++i) {
        EXPECT_EQ(row[i], i < k ? expected.row(r)[i] - 128 : 0)
            << "k " << k << " row " << r << " element " << i;
      }
    }
  }
}

TEST(Int8RowsKernelTest, LooksUpAsTheCpu) {
  for (const int64_t vocabulary : {1, 16, 48, 100, 150}) {
    for (const int64_t width : {1, 30, 64}) {
      const Tensor table = RandomTensor({vocabulary, width}, 1);
      Tensor panels = NewInt8Panels(table.dims(), 1, width);
      RoundMatrix(table, 0, /*transposed=*/true, panels);
      std::vector<int32_t> all(vocabulary);
      std::iota(all.rbegin(), all.rend(), 0);
      const Tensor ids = Tensor::Ints({vocabulary}, all);
      Tensor out(ElementType::kFloat32, {vocabulary, width});
      EmulateElements(PanelColumns{panels.panels<int8_t>(), vocabulary,
                                   ids.i32(), width, out.f32()},
                      out.size());
      EXPECT_TRUE(TensorEqual(out, Embedding(panels, ids)));
    }
  }
}

}  // namespace
}  // namespace gshard::cuda
