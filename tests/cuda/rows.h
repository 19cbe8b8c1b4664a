// Compares rows of results with float64 references.

#ifndef TESTS_CUDA_ROWS_H_
#define TESTS_CUDA_ROWS_H_

#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "tests/cuda/gpu.h"

namespace gshard::cuda {

// Number i of a seed, exact in float64.
inline double X(uint64_t seed, int64_t i) { return Number<float>(seed, i); }

inline Buffer<float> Numbers(uint64_t seed, int64_t size) {
  std::vector<float> values(size);
  for (int64_t i = 0; i < size; ++i) values[i] = Number<float>(seed, i);
  return Buffer<float>(values);
}

// ||got - expected|| / ||expected||, infinite for NaN.
inline double Difference(const std::vector<float>& got,
                         const std::function<double(int64_t)>& expected) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double e = expected(static_cast<int64_t>(i));
    difference += (got[i] - e) * (got[i] - e);
    size += e * e;
  }
  if (difference == 0) return 0;
  const double ratio = std::sqrt(difference / size);
  return std::isfinite(ratio) ? ratio : INFINITY;
}

// Up to `most` of `size` indices, the first and the last among them.
inline std::vector<int64_t> Sample(int64_t size, int64_t most) {
  std::vector<int64_t> sample;
  if (size <= most) {
    sample.resize(size);
    std::iota(sample.begin(), sample.end(), 0);
    return sample;
  }
  for (int64_t i = 0; i < most - 2; ++i) {
    sample.push_back(SplitMix64(i) % static_cast<uint64_t>(size));
  }
  sample.push_back(0);
  sample.push_back(size - 1);
  return sample;
}

// `launch(first, rows, out)` computes rows [first, first + rows) of `width`
// elements. Checks all of them against `expected(row, column)`, and that a
// second launch and the last row alone give the same bits.
inline void CheckRows(
    const std::string& what, int64_t rows, int64_t width, double tolerance,
    const std::function<cudaError_t(int64_t, int64_t, float*)>& launch,
    const std::function<double(int64_t, int64_t)>& expected) {
  const Buffer<float> out(rows * width), again(rows * width), alone(width);
  Check(launch(0, rows, out.data()), what.c_str());
  Check(launch(0, rows, again.data()), what.c_str());
  Check(launch(rows - 1, 1, alone.data()), what.c_str());
  const std::vector<float> a = out.Read(), b = again.Read(), c = alone.Read();
  const double difference =
      Difference(a, [&](int64_t i) { return expected(i / width, i % width); });
  const bool good =
      difference <= tolerance &&
      std::memcmp(a.data(), b.data(), a.size() * 4) == 0 &&
      std::memcmp(a.data() + (rows - 1) * width, c.data(), width * 4) == 0;
  Report(
      what + ", " + std::to_string(rows) + " rows of " + std::to_string(width),
      good, difference);
}

// Reports whether all elements are the expected ones, rounded to T: of kernels
// that only move elements, or whose arithmetic the host does with the same
// bits. What nobody has written is NaN, which equals nothing.
template <typename T>
void CheckExact(const std::string& what, const Buffer<T>& got,
                const std::function<float(int64_t)>& expected) {
  const std::vector<T> values = got.Read();
  int64_t differences = 0;
  for (int64_t i = 0; i < got.size(); ++i) {
    const float exact = expected(i);
    differences += !(Wide(values[i]) ==
                     (sizeof(T) == 2 ? Wide(ToBFloat16(exact)) : Wide(exact)));
  }
  Report(what, differences == 0, static_cast<double>(differences));
}

}  // namespace gshard::cuda

#endif  // TESTS_CUDA_ROWS_H_
