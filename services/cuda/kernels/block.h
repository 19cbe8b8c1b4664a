// What kernels are written over: a block of threads with shared memory, and the
// instructions of tensor cores and asynchronous copies (compute
// capability 8.0).
//
// A kernel's body is an inline function over these. Compiled by nvcc they are
// the GPU's; otherwise they are declared only, and tests define them by an
// emulation (tests/services/cuda/block_emulator.h), so that all of a kernel but
// the instructions themselves is tested without a GPU.
//
// Names of sections are those of NVIDIA's "PTX ISA".

#ifndef SERVICES_CUDA_KERNELS_BLOCK_H_
#define SERVICES_CUDA_KERNELS_BLOCK_H_

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define GSHARD_KERNEL_INLINE __device__ __forceinline__
// For loops over arrays that are to be in registers.
#define GSHARD_UNROLL _Pragma("unroll")
#else
#define GSHARD_KERNEL_INLINE inline
#define GSHARD_UNROLL
#endif

namespace gshard::cuda {

// Threads of a warp, which run the functions marked "by a warp" together.
inline constexpr int kWarp = 32;

#ifdef __CUDACC__

__device__ __forceinline__ int ThreadIndex() { return threadIdx.x; }
__device__ __forceinline__ int BlockThreads() { return blockDim.x; }
__device__ __forceinline__ int64_t BlockIndex() { return blockIdx.x; }
__device__ __forceinline__ int64_t NumBlocks() { return gridDim.x; }

// The block's, 16-byte aligned.
__device__ __forceinline__ std::byte* SharedMemory() {
  extern __shared__ __align__(16) std::byte shared[];
  return shared;
}

// Waits for all threads of the block; what they wrote to shared memory before
// is seen after.
__device__ __forceinline__ void Sync() { __syncthreads(); }

__device__ __forceinline__ uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// Begins to copy `bytes` (0 to 16) to shared memory and to zero the rest of 16
// there. Both addresses are multiples of 16. `global` is not read beyond
// `bytes`. ("Data Movement and Conversion Instructions: cp.async")
__device__ __forceinline__ void CopyAsync(void* shared, const void* global,
                                          int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   SharedAddress(shared)),
               "l"(global), "r"(bytes)
               : "memory");
}
// Ends a group of this thread's copies, maybe an empty one.
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until all but the `kPending` latest groups of this thread are there.
template <int kPending>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// By a warp: four matrices of 8 x 8 numbers of 16 bits from shared memory. Lane
// 8 i + j has the address, a multiple of 16, of row j of matrix i. Lane l gets,
// in r[i], elements 2 (l % 4) and the next of row l / 4. ("Warp-level Matrix
// Load Instruction: ldmatrix")
__device__ __forceinline__ void LoadMatrices(uint32_t (&r)[4],
                                             const void* row) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
      : "r"(SharedAddress(row))
      : "memory");
}
// The same with each matrix transposed: rows 2 (l % 4) and the next of column
// l / 4.
__device__ __forceinline__ void LoadMatricesTransposed(uint32_t (&r)[4],
                                                       const void* row) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
      : "r"(SharedAddress(row))
      : "memory");
}

// By a warp: c += a b of bfloat16 with sums in float32, a [16, 16], b [16, 8],
// c [16, 8]. With g = l / 4 and t = 2 (l % 4), lane l has, in pairs of
// neighbours, the first in the lower half:
//
//   a[0..3]  (g, t), (g + 8, t), (g, t + 8), (g + 8, t + 8) along a row
//   b[0..1]  (t, g), (t + 8, g) along a column
//   c[0..3]  (g, t), (g, t + 1), (g + 8, t), (g + 8, t + 1)
//
// ("Matrix Fragments for mma.m16n8k16 with floating point type")
__device__ __forceinline__ void MultiplyAdd(float (&c)[4],
                                            const uint32_t (&a)[4],
                                            const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// By a warp: what lane `lane` brings as `bits`. ("shfl.sync")
__device__ __forceinline__ uint32_t Shuffle(uint32_t bits, int lane) {
  return __shfl_sync(0xffffffffu, bits, lane);
}

#else

int ThreadIndex();
int BlockThreads();
int64_t BlockIndex();
int64_t NumBlocks();
std::byte* SharedMemory();
void Sync();
void CopyAsync(void* shared, const void* global, int bytes);
void CommitCopies();
void WaitForCopiesBut(int pending);
template <int kPending>
void WaitForCopies() {
  WaitForCopiesBut(kPending);
}
void LoadMatrices(uint32_t (&r)[4], const void* row);
void LoadMatricesTransposed(uint32_t (&r)[4], const void* row);
void MultiplyAdd(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
uint32_t Shuffle(uint32_t bits, int lane);

#endif

}  // namespace gshard::cuda

#endif  // SERVICES_CUDA_KERNELS_BLOCK_H_
