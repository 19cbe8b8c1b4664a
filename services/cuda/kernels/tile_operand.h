// One operand of a tile product, in device memory and in shared memory.

#ifndef SERVICES_CUDA_KERNELS_TILE_OPERAND_H_
#define SERVICES_CUDA_KERNELS_TILE_OPERAND_H_

#include <cstdint>

#include "services/cuda/kernels/block.h"
#include "services/tensor/bfloat16.h"

namespace gshard::cuda {

// A matrix whose lines of `length` elements are `stride` elements apart. Lines
// run along k or across it (see LinesAlong).
template <typename T>
struct Lines {
  const T* data;
  int64_t stride;
  int64_t lines;   // number of lines
  int64_t length;  // of each line
};

// `kLines` lines of `kLength` bfloat16 elements in shared memory, zero beyond
// the end of the matrix. Each line is padded by 16 bytes, so that eight
// consecutive lines lie in different banks.
template <int kLines, int kLength>
class TileOperand {
 public:
  static constexpr int kStride = kLength + 8;
  static constexpr int kBytes = kLines * kStride * 2;
  static_assert(kLength % 8 == 0);

  // Starts copying the block at line `line`, element `element`; each thread
  // copies its share. If lines do not begin at multiples of 16 bytes (`aligned`
  // is false), the copy is synchronous.
  static GSHARD_KERNEL_INLINE void Copy(const Lines<BFloat16>& from,
                                        int64_t line, int64_t element,
                                        bool aligned, BFloat16* shared) {
    constexpr int kParts = kLength / 8;
    for (int i = ThreadIndex(); i < kLines * kParts; i += BlockThreads()) {
      const int64_t l = line + i / kParts;
      const int64_t e = element + i % kParts * 8;
      BFloat16* const to = shared + i / kParts * kStride + i % kParts * 8;
      int64_t count = l < from.lines ? from.length - e : 0;
      count = count < 0 ? 0 : count > 8 ? 8 : count;
      // cp.async needs a valid address even if it reads nothing.
      const BFloat16* const source =
          count > 0 ? from.data + l * from.stride + e : from.data;
      if (aligned) {
        CopyAsync(to, source, static_cast<int>(count) * 2);
      } else {
        for (int j = 0; j < 8; ++j) to[j] = j < count ? source[j] : BFloat16();
      }
    }
  }

  // By a warp: of lines along k, elements [at, at + 16) of 16 lines from `line`
  // on, as a fragment `a` (block.h).
  static GSHARD_KERNEL_INLINE void LoadFragment(const BFloat16* shared,
                                                int line, int at,
                                                uint32_t (&parts)[4]) {
    const int lane = ThreadIndex() % kWarp;
    // The four matrices: lines 0 to 7 and lines 8 to 15 for k 0 to 7, then both
    // for k 8 to 15.
    LoadMatrices(parts,
                 shared + (line + lane % 16) * kStride + at + lane / 16 * 8);
  }

  // Whether Copy() may copy by 16 bytes.
  static GSHARD_KERNEL_INLINE bool IsAligned(const Lines<BFloat16>& from) {
    return from.stride % 8 == 0 &&
           reinterpret_cast<uintptr_t>(from.data) % 16 == 0;
  }
};

}  // namespace gshard::cuda

#endif  // SERVICES_CUDA_KERNELS_TILE_OPERAND_H_
