// The primitives that kernels are written with: a block of threads with shared
// memory, tensor core instructions and asynchronous copies (compute capability
// 8.0).
//
// The body of each kernel is an inline function that calls these. Compiled by
// nvcc, they are the GPU's instructions. Otherwise they are only declared, and
// tests define them by an emulation (tests/services/cuda/block_emulator.h), so
// that everything in a kernel except the instructions themselves is tested
// without a GPU.
//
// Quoted section names refer to NVIDIA's "PTX ISA".

#ifndef SERVICES_CUDA_KERNELS_BLOCK_H_
#define SERVICES_CUDA_KERNELS_BLOCK_H_

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define GSHARD_KERNEL_INLINE __device__ __forceinline__
// For loops over arrays that must stay in registers.
#define GSHARD_UNROLL _Pragma("unroll")
// For loops whose loads should be many at a time.
#define GSHARD_UNROLL_16 _Pragma("unroll 16")
#else
#define GSHARD_KERNEL_INLINE inline
#define GSHARD_UNROLL
#define GSHARD_UNROLL_16
#endif

namespace gshard::cuda {

// Threads of a warp. All of them call functions marked "by a warp" together.
inline constexpr int kWarp = 32;

#ifdef __CUDACC__

__device__ __forceinline__ int ThreadIndex() { return threadIdx.x; }
__device__ __forceinline__ int BlockThreads() { return blockDim.x; }
__device__ __forceinline__ int64_t BlockIndex() { return blockIdx.x; }
__device__ __forceinline__ int64_t NumBlocks() { return gridDim.x; }

// The block's shared memory, 16-byte aligned.
__device__ __forceinline__ std::byte* SharedMemory() {
  extern __shared__ __align__(16) std::byte shared[];
  return shared;
}

// Barrier for all threads of the block. Writes to shared memory before it are
// visible after it.
__device__ __forceinline__ void Sync() { __syncthreads(); }

__device__ __forceinline__ uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// Starts copying 16 bytes to shared memory, or sets them to zero if `reads` is
// false. Both addresses are multiples of 16; `global` is valid, even if nothing
// is read. ("Data Movement and Conversion Instructions: cp.async")
__device__ __forceinline__ void CopyAsync(void* shared, const void* global,
                                          bool reads) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   SharedAddress(shared)),
               "l"(global), "r"(reads ? 16 : 0)
               : "memory");
}
// Closes the current group of this thread's copies, which may be empty.
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until all but the latest `kPending` groups of this thread have arrived.
template <int kPending>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// By a warp: loads four 8 x 8 matrices of 16-bit elements from shared memory.
// Lane 8 i + j passes the address, a multiple of 16, of row j of matrix i. In
// r[i], lane l receives elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of
// matrix i. ("Warp-level Matrix Load Instruction: ldmatrix")
__device__ __forceinline__ void LoadMatrices(uint32_t (&r)[4],
                                             const void* row) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
      : "r"(SharedAddress(row))
      : "memory");
}
// The same with each matrix transposed: of column l / 4, lane l receives rows
// 2 (l % 4) and 2 (l % 4) + 1.
__device__ __forceinline__ void LoadMatricesTransposed(uint32_t (&r)[4],
                                                       const void* row) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
      : "r"(SharedAddress(row))
      : "memory");
}

// By a warp: c += a b for bfloat16 factors, accumulated in float32, with
// a [16, 16], b [16, 8] and c [16, 8]. With g = l / 4 and t = 2 (l % 4), lane l
// holds the elements below. Each register of a and b holds two neighbours, the
// first in the lower half:
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

// By a warp: c += a b for int8 factors, exactly, in int32, with a [16, 32],
// b [32, 8] and c [16, 8]. With g = l / 4 and t = 4 (l % 4), lane l holds the
// elements below, and those of c as in MultiplyAdd. Each register of a and b
// holds four neighbours, the first in the lowest byte:
//
//   a[0..3]  (g, t), (g + 8, t), (g, t + 16), (g + 8, t + 16) along a row
//   b[0..1]  (t, g), (t + 16, g) along a column
//
// ("Matrix Fragments for mma.m16n8k32")
__device__ __forceinline__ void MultiplyAddInt8(int32_t (&c)[4],
                                                const uint32_t (&a)[4],
                                                const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// By a warp: the `bits` argument of lane `lane`. ("shfl.sync")
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
void CopyAsync(void* shared, const void* global, bool reads);
void CommitCopies();
void WaitForCopiesBut(int pending);
template <int kPending>
void WaitForCopies() {
  WaitForCopiesBut(kPending);
}
void LoadMatrices(uint32_t (&r)[4], const void* row);
void LoadMatricesTransposed(uint32_t (&r)[4], const void* row);
void MultiplyAdd(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
void MultiplyAddInt8(int32_t (&c)[4], const uint32_t (&a)[4],
                     const uint32_t (&b)[2]);
uint32_t Shuffle(uint32_t bits, int lane);

#endif

}  // namespace gshard::cuda

#endif  // SERVICES_CUDA_KERNELS_BLOCK_H_
