// Holds every kernel of services/cuda/kernels to float64, on a GPU.
//
//   cuda_check [--short [--unfilled]]
//
// With --short, small shapes and no timing, for compute-sanitizer. With
// --unfilled, memory is not filled with NaN beforehand, so that initcheck sees
// what reads it. Exits with 0, 1 for a difference, 77 without a GPU.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>

#include "tests/cuda/rows.h"

namespace gshard::cuda {
namespace {

int failures = 0;

struct Shape {
  std::vector<int32_t> sizes;
  int64_t k, n;
  int64_t rows() const {
    return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  }
  int64_t experts() const { return static_cast<int64_t>(sizes.size()); }
  std::string Text() const {
    return std::to_string(rows()) + " rows, " + std::to_string(experts()) +
           " experts, K " + std::to_string(k) + ", N " + std::to_string(n);
  }
};

// ||got - expected|| / ||expected|| over all elements, or over many of them.
// NaN is a difference.
class Deviation {
 public:
  void Add(double got, double expected) {
    difference_ += (got - expected) * (got - expected);
    size_ += expected * expected;
  }
  double value() const {
    return difference_ == 0 ? 0 : std::sqrt(difference_ / size_);
  }

 private:
  double difference_ = 0, size_ = 0;
};

__global__ void CountNanKernel(const float* x, int64_t size,
                               unsigned long long* count) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < size;
       i += stride) {
    if (isnan(x[i])) atomicAdd(count, 1ull);
  }
}

// Elements that nobody has written.
int64_t CountNan(const Buffer<float>& buffer) {
  const Buffer<unsigned long long> count(std::vector<unsigned long long>{0});
  CountNanKernel<<<1024, 256>>>(buffer.data(), buffer.size(), count.data());
  return static_cast<int64_t>(count.Read()[0]);
}

// Larger results are neither computed a second time nor read as a whole.
constexpr int64_t kMostRead = int64_t{1} << 28;

// The elements at `places`.
std::vector<float> ReadAt(const Buffer<float>& buffer,
                          const std::vector<int64_t>& places) {
  const bool whole = buffer.size() < kMostRead;
  const std::vector<float> all = buffer.Read(0, whole ? buffer.size() : 0);
  std::vector<float> values;
  for (const int64_t at : places) {
    values.push_back(whole ? all[at] : buffer.Read(at, 1)[0]);
  }
  return values;
}

// Whether a second run, if there was one, gave the same bits.
bool SameBits(const Buffer<float>& again, const Buffer<float>& out) {
  const auto a = again.Read(), b = out.Read(0, again.size());
  return std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

// What is allowed in sums of `k` products, which are exact in float32: the
// rounding of float32 sums. Tensor cores, which multiply bfloat16, truncate
// their sums, and such errors add up (Fasi et al., PeerJ CS 7:e330).
template <typename T>
constexpr double Tolerance(int64_t k) {
  return 1e-5 + (sizeof(T) == 2 ? 6e-9 * static_cast<double>(k) : 0.0);
}

template <typename T>
void CheckProduct(const Shape& s, bool transposed, int64_t most) {
  const Buffer<T> rows(s.rows() * s.k), weights(s.experts() * s.k * s.n);
  const Buffer<float> out(s.rows() * s.n);
  const Buffer<float> again(out.size() < kMostRead ? out.size() : 0);
  Fill(rows, 1);
  Fill(weights, 2);
  const Rows<T> launches(s.sizes);
  RaggedProduct<T> p = {};
  p.rows = rows.data();
  p.weights = weights.data();
  p.transposed = transposed;
  p.k = s.k;
  p.n = s.n;
  p.out = out.data();
  launches.Multiply(p);
  if (again.size() > 0) {
    p.out = again.data();
    launches.Multiply(p);
  }
  Check(cudaDeviceSynchronize(), "product");

  const std::vector<int64_t> offsets = GroupOffsets(s.sizes);
  Deviation difference;
  const std::vector<int64_t> places = Sample(out.size(), most);
  const std::vector<float> got = ReadAt(out, places);
  for (size_t i = 0; i < places.size(); ++i) {
    const int64_t at = places[i];
    const int64_t r = at / s.n, c = at % s.n;
    int64_t e = 0;
    while (offsets[e + 1] <= r) ++e;
    double sum = 0;
    for (int64_t k = 0; k < s.k; ++k) {
      const int64_t w =
          e * s.k * s.n + (transposed ? c * s.k + k : k * s.n + c);
      sum += Wide(Number<T>(1, r * s.k + k)) * Wide(Number<T>(2, w));
    }
    difference.Add(got[i], sum);
  }
  Report(std::string(sizeof(T) == 2 ? "bf16 " : "f32 ") +
             (transposed ? "rows' gradient " : "product ") + s.Text(),
         difference.value() <= Tolerance<T>(s.k) && CountNan(out) == 0 &&
             SameBits(again, out),
         difference.value());
}

template <typename T>
void CheckWeightsGradient(const Shape& s, int64_t most) {
  const Buffer<T> rows(s.rows() * s.k), dresult(s.rows() * s.n);
  const Buffer<float> out(s.experts() * s.k * s.n);
  const Buffer<float> again(out.size() < kMostRead ? out.size() : 0);
  Fill(rows, 1);
  Fill(dresult, 2);
  const std::vector<int64_t> offsets = GroupOffsets(s.sizes);
  const int64_t most_rows = *std::max_element(s.sizes.begin(), s.sizes.end());
  const Buffer<int64_t> there(offsets);
  RaggedWeightsGradient<T> gradient = {
      rows.data(), dresult.data(), there.data(), s.experts(), s.k,
      s.n,         out.data()};
  Check(LaunchRaggedWeightsGradient(gradient, nullptr), "weights' gradient");
  if (again.size() > 0) {
    gradient.out = again.data();
    Check(LaunchRaggedWeightsGradient(gradient, nullptr), "weights' gradient");
  }
  Check(cudaDeviceSynchronize(), "weights' gradient");
  Deviation difference;
  const std::vector<int64_t> places = Sample(out.size(), most);
  const std::vector<float> got = ReadAt(out, places);
  for (size_t i = 0; i < places.size(); ++i) {
    const int64_t at = places[i];
    const int64_t e = at / (s.k * s.n), k = at / s.n % s.k, n = at % s.n;
    double sum = 0;
    for (int64_t r = offsets[e]; r < offsets[e + 1]; ++r) {
      sum += Wide(Number<T>(1, r * s.k + k)) * Wide(Number<T>(2, r * s.n + n));
    }
    difference.Add(got[i], sum);
  }
  Report(std::string(sizeof(T) == 2 ? "bf16 " : "f32 ") + "weights' gradient " +
             s.Text(),
         difference.value() <= Tolerance<T>(most_rows) && CountNan(out) == 0 &&
             SameBits(again, out),
         difference.value());
}

// The bits of one row among others, at any place.
template <typename T>
void CheckInvariance(int64_t k, int64_t n) {
  const Buffer<T> row(k), weights(k * n);
  Fill(row, 3);
  Fill(weights, 4);
  std::vector<float> expected;
  int64_t differences = 0;
  for (const int32_t count :
       {1, 2, 15, 16, 17, 32, 33, 64, 127, 128, 129, 300}) {
    for (const int32_t place : {0, count / 2, count - 1}) {
      const Buffer<T> rows(count * k);
      Fill(rows, 100 + count);
      Check(cudaMemcpy(rows.data() + place * k, row.data(), k * sizeof(T),
                       cudaMemcpyDeviceToDevice),
            "copy");
      const Buffer<float> out(count * n);
      RaggedProduct<T> p = {};
      p.rows = rows.data();
      p.weights = weights.data();
      p.k = k;
      p.n = n;
      p.out = out.data();
      Rows<T>({count}).Multiply(p);
      const std::vector<float> got = out.Read(place * n, n);
      if (expected.empty()) expected = got;
      differences += std::memcmp(got.data(), expected.data(), n * 4) != 0;
    }
  }
  Report(std::string(sizeof(T) == 2 ? "bf16" : "f32") +
             " a row's bits among other rows, K " + std::to_string(k) + ", N " +
             std::to_string(n),
         differences == 0, static_cast<double>(differences));
}

// The end of a product: bias, rounding, rectifier, as the host does it.
template <typename T, typename Out>
void CheckEnd(const std::string& what) {
  const Shape s = {{40, 0, 3}, 64, 72};
  const Buffer<T> rows(s.rows() * s.k), weights(s.experts() * s.k * s.n);
  const Buffer<float> bias(s.experts() * s.n);
  const Buffer<float> sums(s.rows() * s.n);
  const Buffer<Out> out(s.rows() * s.n);
  Fill(rows, 1);
  Fill(weights, 2);
  Fill(bias, 3);
  const Rows<T> launches(s.sizes);
  RaggedProduct<T> p = {};
  p.rows = rows.data();
  p.weights = weights.data();
  p.k = s.k;
  p.n = s.n;
  p.out = sums.data();
  launches.Multiply(p);
  p.bias = bias.data();
  p.relu = true;
  if constexpr (sizeof(Out) == 2) {
    p.out = nullptr;
    p.rounded_out = out.data();
  } else {
    p.out = out.data();
  }
  launches.Multiply(p);
  const auto plain = sums.Read();
  CheckExact("a product's end: bias, rectified, " + what, out, [&](int64_t i) {
    const int64_t e = i / s.n < 40 ? 0 : 2;
    const float x = plain[i] + Number<float>(3, e * s.n + i % s.n);
    return x < 0 ? 0.0f : x;
  });
}

// Bit for bit what the functions do on the host, in which tests have held them
// to the CPU's kernels.
template <typename In, typename Out, typename Make>
void CheckElements(const char* name, int64_t size, const Make& make) {
  const Buffer<In> x(size);
  const Buffer<Out> out(size);
  Fill(x, 5);
  Check(LaunchElements(make(x.data(), out.data()), size, nullptr), name);
  const std::vector<In> from = x.Read();
  const std::vector<Out> got = out.Read();
  int64_t differences = 0;
  for (int64_t i = 0; i < size; ++i) {
    double expected = Wide(from[i]);
    if (std::strcmp(name, "cast to bf16") == 0) {
      expected = Wide(ToBFloat16(static_cast<float>(expected)));
    } else if (std::strncmp(name, "relu", 4) == 0) {
      expected = expected < 0 ? 0 : expected;
    }
    differences += Wide(got[i]) != expected;
  }
  Report(std::string(name) + " of " + std::to_string(size), differences == 0,
         static_cast<double>(differences));
}

void CheckElementwise(int64_t size) {
  CheckElements<float, BFloat16>("cast to bf16", size,
                                 [](const float* x, BFloat16* out) {
                                   return CastToBf16{x, out};
                                 });
  CheckElements<BFloat16, float>("cast to f32", size,
                                 [](const BFloat16* x, float* out) {
                                   return CastToFloat{x, out};
                                 });
  CheckElements<float, float>("relu f32", size, [](const float* x, float* out) {
    return Relu{x, out};
  });
  CheckElements<BFloat16, BFloat16>("relu bf16", size,
                                    [](const BFloat16* x, BFloat16* out) {
                                      return ReluBf16{x, out};
                                    });
  // Where y is positive dy, which here is y.
  CheckElements<float, float>("relu gradient", size,
                              [](const float* x, float* out) {
                                return ReluGradient{x, nullptr, x, out};
                              });
  const Buffer<BFloat16> y(size);
  const Buffer<float> dy(size), out(size);
  Fill(y, 5);
  Fill(dy, 6);
  Check(LaunchElements(ReluGradient{nullptr, y.data(), dy.data(), out.data()},
                       size, nullptr),
        "relu gradient");
  CheckExact(
      "relu gradient of bf16, " + std::to_string(size), out, [](int64_t i) {
        return Wide(Number<BFloat16>(5, i)) > 0 ? Number<float>(6, i) : 0.0f;
      });
}

void CheckBiases() {
  const Shape s = {{300, 0, 7, 33}, 1, 700};
  const Buffer<float> rows(s.rows() * s.n), bias(s.experts() * s.n);
  const Buffer<float> added(rows.size()), sums(bias.size());
  Fill(rows, 1);
  Fill(bias, 2);
  const std::vector<int64_t> offsets = GroupOffsets(s.sizes);
  const Buffer<RaggedTile> tiles(RaggedTiles(s.sizes, 16, 0, INT32_MAX));
  const Buffer<int64_t> there(offsets);
  Check(LaunchRaggedBiasAdd({rows.data(), bias.data(), tiles.data(),
                             tiles.size(), s.n, added.data()},
                            nullptr),
        "bias");
  Check(
      LaunchRaggedBiasGradient(
          {rows.data(), there.data(), s.experts(), s.n, sums.data()}, nullptr),
      "bias gradient");
  const auto got = added.Read(), got_sums = sums.Read();
  Deviation add, sum;
  for (int64_t e = 0; e < s.experts(); ++e) {
    for (int64_t c = 0; c < s.n; ++c) {
      double total = 0;
      for (int64_t r = offsets[e]; r < offsets[e + 1]; ++r) {
        const double x = Number<float>(1, r * s.n + c);
        total += x;
        add.Add(got[r * s.n + c], x + Number<float>(2, e * s.n + c));
      }
      sum.Add(got_sums[e * s.n + c], total);
    }
  }
  Report("bias of rows", add.value() < 1e-7, add.value());
  Report("bias gradient", sum.value() < Tolerance<float>(300), sum.value());
}

void CheckDropout() {
  const int64_t width = 300, columns = 900, first = 100;
  const std::vector<int32_t> rows = {7, 0, 2'000'000'000, 3};
  const Buffer<int32_t> there(rows);
  const Buffer<float> x(4 * width), out(4 * width);
  Fill(x, 1);
  const DropoutMask mask(0.25f, 99);
  Check(LaunchElements(DropoutRows{x.data(), there.data(), width, first,
                                   columns, mask, out.data()},
                       4 * width, nullptr),
        "dropout");
  const auto got = out.Read();
  int64_t differences = 0;
  for (int64_t i = 0; i < 4 * width; ++i) {
    const int64_t index = rows[i / width] * columns + first + i % width;
    differences += got[i] != Number<float>(1, i) * mask.Factor(index);
  }
  Report("dropout of rows", differences == 0, static_cast<double>(differences));
}

void CheckAll(bool quick) {
  std::vector<Shape> shapes = {
      {{5}, 32, 16},          {{1}, 8, 8},     {{0, 3, 0, 0, 17, 1}, 40, 136},
      {{130, 0, 33}, 72, 24}, {{3, 4}, 13, 9}, {{0, 0}, 8, 8}};
  if (!quick) {
    shapes.push_back({{1000, 0, 1, 129, 31, 4096}, 1024, 2048});
    shapes.push_back({std::vector<int32_t>(2048, 3), 128, 256});
    shapes.push_back({{333, 64}, 1001, 777});
    // Weights of more than 2^31 elements.
    shapes.push_back({std::vector<int32_t>(40, 20), 8192, 8192});
  }
  for (const Shape& shape : shapes) {
    const int64_t most = 20'000'000 / shape.k + 2;
    CheckProduct<BFloat16>(shape, false, std::min<int64_t>(most, 20'000));
    CheckProduct<BFloat16>(shape, true, std::min<int64_t>(most, 20'000));
    if (shape.experts() * shape.k * shape.n < int64_t{1} << 31) {
      CheckProduct<float>(shape, false, std::min<int64_t>(most, 20'000));
      CheckProduct<float>(shape, true, std::min<int64_t>(most, 20'000));
      CheckWeightsGradient<float>(shape, 20'000);
    }
    CheckWeightsGradient<BFloat16>(shape, 20'000);
  }
  CheckInvariance<BFloat16>(200, 264);
  CheckInvariance<float>(200, 264);
  if (!quick) CheckInvariance<BFloat16>(4096, 1024);
  CheckEnd<BFloat16, BFloat16>("bf16");
  CheckEnd<BFloat16, float>("bf16 to f32");
  CheckEnd<float, float>("f32");
  CheckBiases();
  CheckDropout();
  for (const int64_t size : {int64_t{1}, int64_t{1000}, int64_t{1} << 23}) {
    if (!quick || size <= 1000) CheckElementwise(size);
  }
}

}  // namespace

void Report(const std::string& what, bool good, double value) {
  if (!good) ++failures;
  std::printf("%-6s %-58s %.1e\n", good ? "ok" : "FAILED", what.c_str(), value);
}

}  // namespace gshard::cuda

int main(int argc, char** argv) {
  // A check that hangs is the one after the last line.
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (found != cudaSuccess) {
    std::printf("Nothing was checked: %s.\n", cudaGetErrorString(found));
    return 77;
  }
  const bool quick = argc > 1 && std::string(argv[1]) == "--short";
  gshard::cuda::fills = argc < 3 || std::string(argv[2]) != "--unfilled";
  gshard::cuda::CheckAll(quick);
  gshard::cuda::CheckDense(quick);
  gshard::cuda::CheckAttentions(quick);
  gshard::cuda::CheckGates(quick);
  gshard::cuda::CheckDecoding(quick);
  gshard::cuda::CheckInt8(quick);
  gshard::cuda::CheckSteps(quick);
  if (!quick) gshard::cuda::PrintSpeed();
  std::printf("%d failed\n", gshard::cuda::failures);
  return gshard::cuda::failures == 0 ? 0 : 1;
}
