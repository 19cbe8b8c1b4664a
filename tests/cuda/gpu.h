// CUDA helpers of the check: memory, random numbers, timing, reports.

#ifndef TESTS_CUDA_GPU_H_
#define TESTS_CUDA_GPU_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "services/base/splitmix64.h"
#include "services/cuda/kernels/launch.h"
#include "services/tensor/bfloat16.h"

namespace gshard::cuda {

inline void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

// Whether memory is initially all NaN.
inline bool fills = true;

// GPU memory.
template <typename T>
class Buffer {
 public:
  // No larger than its elements, so that memcheck sees what reads beyond them.
  explicit Buffer(int64_t size) : size_(size) {
    Check(cudaMalloc(&data_, std::max<size_t>(1, size * sizeof(T))),
          "cudaMalloc");
    Poison();
  }
  explicit Buffer(const std::vector<T>& values)
      : Buffer(static_cast<int64_t>(values.size())) {
    Check(cudaMemcpy(data_, values.data(), values.size() * sizeof(T),
                     cudaMemcpyHostToDevice),
          "copy to the GPU");
  }
  ~Buffer() { cudaFree(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void Poison() {
    if (!fills) return;
    Check(cudaMemset(data_, 0xff, size_ * sizeof(T)), "cudaMemset");
  }
  T* data() const { return data_; }
  int64_t size() const { return size_; }
  std::vector<T> Read(int64_t begin, int64_t count) const {
    std::vector<T> values(count);
    Check(cudaMemcpy(values.data(), data_ + begin, count * sizeof(T),
                     cudaMemcpyDeviceToHost),
          "copy from the GPU");
    return values;
  }
  std::vector<T> Read() const { return Read(0, size_); }

 private:
  T* data_ = nullptr;
  int64_t size_;
};

// Number `i` of `seed`, uniform in [-1, 1), the same on the GPU and the host,
// so that references need no memory.
template <typename T>
constexpr T Number(uint64_t seed, int64_t i);
template <>
constexpr float Number(uint64_t seed, int64_t i) {
  const uint64_t bits = SplitMix64(SplitMix64(seed) + i) >> 40;
  return static_cast<float>(bits) * 0x1p-23f - 1.0f;
}
template <>
constexpr int8_t Number(uint64_t seed, int64_t i) {
  return static_cast<int8_t>(
      static_cast<int>(SplitMix64(SplitMix64(seed) + i) % 255) - 127);
}
template <>
constexpr BFloat16 Number(uint64_t seed, int64_t i) {
  return ToBFloat16(Number<float>(seed, i));
}
constexpr double Wide(float x) { return x; }
constexpr double Wide(BFloat16 x) { return ToFloat(x); }

template <typename T>
__global__ void FillKernel(T* out, int64_t size, uint64_t seed) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < size;
       i += stride) {
    out[i] = Number<T>(seed, i);
  }
}
template <typename T>
void Fill(const Buffer<T>& buffer, uint64_t seed) {
  FillKernel<<<4096, 256>>>(buffer.data(), buffer.size(), seed);
  Check(cudaGetLastError(), "fill");
}

// Multiplies rows of experts with the launches that a back end would use.
template <typename T>
class Rows {
 public:
  explicit Rows(const std::vector<int32_t>& sizes)
      : large_(TilesOf(sizes, false)), small_(TilesOf(sizes, true)) {}

  void Multiply(RaggedProduct<T> product, cudaStream_t stream = nullptr) const {
    product.tiles = large_.data();
    product.num_tiles = large_.size();
    Check(LaunchRaggedProduct(product, stream), "product");
    if constexpr (sizeof(T) < 4) {
      product.tiles = small_.data();
      product.num_tiles = small_.size();
      Check(LaunchSmallRaggedProduct(product, stream), "small product");
    }
  }

 private:
  static std::vector<RaggedTile> TilesOf(const std::vector<int32_t>& sizes,
                                         bool small) {
    constexpr int32_t kMost = INT32_MAX;
    if (sizeof(T) == 4) {
      return small ? std::vector<RaggedTile>()
                   : RaggedTiles(sizes, FloatTile::kRows, 0, kMost);
    }
    return small ? RaggedTiles(sizes, SmallTile::kRows, 0, kFewRows)
                 : RaggedTiles(sizes, LargeTile::kRows, kFewRows, kMost);
  }
  const Buffer<RaggedTile> large_, small_;
};

// Median milliseconds of `work(i)` over several repetitions i, after warm-up.
double Milliseconds(const std::function<void(int)>& work);

// Prints a line of the check and records a failure unless `good`.
void Report(const std::string& what, bool good, double value);

// Checks the training kernels that work on parameters.
void CheckSteps(bool quick);

// Check router kernels other than products, the gate, and beam search.
void CheckDense(bool quick);
void CheckAttentions(bool quick);
void CheckGates(bool quick);
void CheckDecoding(bool quick);

// Checks what serving computes with int8 weights.
void CheckInt8(bool quick);

// Prints the speed of the kernels beside the GPU's ceilings.
void PrintSpeed();

}  // namespace gshard::cuda

#endif  // TESTS_CUDA_GPU_H_
