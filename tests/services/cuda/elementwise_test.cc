// Tests kernels other than products on the emulator, against their CPU versions
// in services/ops.

#include "services/cuda/kernels/elementwise.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <vector>

#include "services/ops/cast.h"
#include "services/ops/dropout.h"
#include "services/ops/elementwise.h"
#include "services/ops/ragged_dot.h"
#include "tests/services/cuda/emulated_kernels.h"
#include "tests/testing/tensors.h"

namespace gshard::cuda {
namespace {

// Random numbers, and the edge cases of conversions and rectifiers: several for
// each thread at once, and some one by one.
Tensor Numbers() {
  Tensor x = RandomTensor({5000}, 5);
  const std::vector<uint32_t> bits = {
      0x00000000, 0x80000000, 0x7f800000, 0xff800000, 0x7f800001, 0xffc12345,
      0x00000001, 0x80000001, 0x7f7fffff, 0x3f808000, 0x3f818000, 0x3f807fff};
  for (size_t i = 0; i < bits.size(); ++i) {
    x.f32()[i] = std::bit_cast<float>(bits[i]);
  }
  return x;
}

bool SameBits(const Tensor& a, const Tensor& b) {
  return a.type() == b.type() && a.dims() == b.dims() &&
         std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}

TEST(ElementwiseKernelsTest, CastAsTheCpu) {
  const Tensor x = Numbers();
  Tensor out(ElementType::kBFloat16, x.dims());
  EmulateElements(CastToBf16{x.f32(), out.data<BFloat16>()}, x.size());
  EXPECT_TRUE(SameBits(out, Cast(x, ElementType::kBFloat16)));
  Tensor wide(ElementType::kFloat32, x.dims());
  EmulateElements(CastToFloat{out.data<BFloat16>(), wide.f32()}, x.size());
  EXPECT_TRUE(SameBits(wide, Cast(out, ElementType::kFloat32)));
}

TEST(ElementwiseKernelsTest, RectifyAsTheCpu) {
  const Tensor x = Numbers(), dy = RandomTensor(x.dims(), 6);
  const Tensor rounded = Cast(x, ElementType::kBFloat16);
  Tensor out(ElementType::kFloat32, x.dims());
  EmulateElements(cuda::Relu{x.f32(), out.f32()}, x.size());
  EXPECT_TRUE(SameBits(out, gshard::Relu(x.Clone())));
  Tensor narrow(ElementType::kBFloat16, x.dims());
  EmulateElements(ReluBf16{rounded.data<BFloat16>(), narrow.data<BFloat16>()},
                  x.size());
  EXPECT_TRUE(SameBits(narrow, gshard::Relu(rounded.Clone())));
  EmulateElements(cuda::ReluGradient{x.f32(), nullptr, dy.f32(), out.f32()},
                  x.size());
  EXPECT_TRUE(SameBits(out, gshard::ReluGradient(x, dy.Clone())));
  EmulateElements(cuda::ReluGradient{nullptr, rounded.data<BFloat16>(),
                                     dy.f32(), out.f32()},
                  x.size());
  EXPECT_TRUE(SameBits(out, gshard::ReluGradient(rounded, dy.Clone())));
}

TEST(ElementwiseKernelsTest, DropOutTheElementsThatTheCpuDoes) {
  const Tensor x = RandomTensor({5, 300}, 1);
  const Tensor rows = Tensor::Ints({5}, {7, 0, 2'000'000'000, 3, 4});
  Tensor out(ElementType::kFloat32, x.dims());
  EmulateElements(cuda::DropoutRows{x.f32(), rows.i32(), 300, 100, 900,
                                    DropoutMask(0.3f, 99), out.f32()},
                  x.size());
  EXPECT_TRUE(
      SameBits(out, DropoutRowsPart(x.Clone(), rows, 100, 900, 0.3f, 99)));
}

TEST(ElementwiseKernelsTest, BiasesAsTheCpu) {
  const std::vector<int32_t> groups = {3, 0, 40, 1};
  const Tensor sizes = Tensor::Ints({4}, groups);
  const Tensor rows = RandomTensor({44, 300}, 1),
               bias = RandomTensor({4, 300}, 2);
  const std::vector<RaggedTile> tiles = RaggedTiles(groups, 16, 0, 1000);
  Tensor out(ElementType::kFloat32, rows.dims());
  Emulate(cuda::RaggedBiasAdd{rows.f32(), bias.f32(), tiles.data(),
                              std::ssize(tiles), 300, out.f32()});
  EXPECT_TRUE(SameBits(out, gshard::RaggedBiasAdd(rows.Clone(), bias, sizes)));
  Tensor dbias(ElementType::kFloat32, bias.dims());
  const std::vector<int64_t> offsets = GroupOffsets(groups);
  Emulate(cuda::RaggedBiasGradient{rows.f32(), offsets.data(), 4, 300,
                                   dbias.f32()});
  EXPECT_TRUE(SameBits(dbias, gshard::RaggedBiasGradient(rows, sizes)));
}

}  // namespace
}  // namespace gshard::cuda
