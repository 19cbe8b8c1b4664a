// One factor of a tile's product, in device memory and in shared memory.

#ifndef SERVICES_CUDA_KERNELS_TILE_OPERAND_H_
#define SERVICES_CUDA_KERNELS_TILE_OPERAND_H_

#include <cstdint>

#include "services/cuda/kernels/block.h"
#include "services/tensor/bfloat16.h"

namespace gshard::cuda {

// A factor whose lines, of `length` elements, lie `stride` elements apart.
// Lines run along k or across it, see TileOperand.
template <typename T>
struct Lines {
  const T* data;
  int64_t stride;
  int64_t lines;   // that there are
  int64_t length;  // of each
};

// `kLines` lines of `kLength` bfloat16 in shared memory, zero where the factor
// ends. Lines are 16 bytes further apart than they are long, which puts eight
// that follow each other into different banks.
template <int kLines, int kLength>
class TileOperand {
 public:
  static constexpr int kStride = kLength + 8;
  static constexpr int kBytes = kLines * kStride * 2;
  static_assert(kLength % 8 == 0);

  // Begins to copy what starts at line `line`, element `element`, in the
  // calling threads' share. Where lines do not begin at multiples of 16 bytes
  // the copy is an ordinary one, and complete.
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
      // An address that is never read must be one all the same.
      const BFloat16* const source =
          count > 0 ? from.data + l * from.stride + e : from.data;
      if (aligned) {
        CopyAsync(to, source, static_cast<int>(count) * 2);
      } else {
        for (int j = 0; j < 8; ++j) to[j] = j < count ? source[j] : BFloat16();
      }
    }
  }

  // Whether Copy() may copy by 16 bytes.
  static GSHARD_KERNEL_INLINE bool IsAligned(const Lines<BFloat16>& from) {
    return from.stride % 8 == 0 &&
           reinterpret_cast<uintptr_t>(from.data) % 16 == 0;
  }
};

}  // namespace gshard::cuda

#endif  // SERVICES_CUDA_KERNELS_TILE_OPERAND_H_
