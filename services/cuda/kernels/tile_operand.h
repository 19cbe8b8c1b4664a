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
// the end of the matrix, for a block of `kThreads`. Each line is padded by 16
// bytes, so that eight consecutive lines lie in different banks.
template <int kLines, int kLength, int kThreads>
class TileOperand {
 public:
  static constexpr int kStride = kLength + 8;
  static constexpr int kBytes = kLines * kStride * 2;
  static_assert(kLength % 8 == 0);

  // Starts copying the block at line `line`, element `element`; each thread
  // copies the same part, of 16 bytes, of several lines. If not kAligned, the
  // copy is synchronous.
  template <bool kAligned>
  static GSHARD_KERNEL_INLINE void Copy(const Lines<BFloat16>& from,
                                        int64_t line, int64_t element,
                                        BFloat16* shared) {
    constexpr int kParts = kLength / 8;
    constexpr int kLinesAtOnce = kThreads / kParts;
    static_assert(kThreads % kParts == 0);
    const int first = ThreadIndex() / kParts, part = ThreadIndex() % kParts * 8;
    const int64_t left = from.length - element - part;
    const int64_t offset = (line + first) * from.stride + element + part;
    GSHARD_UNROLL for (int i = 0; i < kLines; i += kLinesAtOnce) {
      if (kLines % kLinesAtOnce != 0 && first + i >= kLines) continue;
      BFloat16* const to = shared + (first + i) * kStride + part;
      const bool is_there = left > 0 && line + first + i < from.lines;
      const BFloat16* const source =
          is_there ? from.data + offset + i * from.stride : from.data;
      if constexpr (kAligned) {
        CopyAsync(to, source, is_there);
      } else {
        for (int j = 0; j < 8; ++j) {
          to[j] = is_there && j < left ? source[j] : BFloat16();
        }
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

  // Whether Copy() may be kAligned: lines are multiples of 16 bytes.
  static GSHARD_KERNEL_INLINE bool IsAligned(const Lines<BFloat16>& from) {
    return from.stride % 8 == 0 && from.length % 8 == 0 &&
           reinterpret_cast<uintptr_t>(from.data) % 16 == 0;
  }
};

}  // namespace gshard::cuda

#endif  // SERVICES_CUDA_KERNELS_TILE_OPERAND_H_
