// Holds the int8 kernels bit for bit to what the host computes.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>

#include "services/cuda/kernels/launch_dense.h"
#include "tests/cuda/rows.h"

namespace gshard::cuda {
namespace {

constexpr uint64_t kRowSeed = 1, kPanelSeed = 2, kScaleSeed = 3, kBiasSeed = 4;

// A row as the CPU quantizes it (services/ops/int8_panel.cc).
struct HostRow {
  std::vector<int8_t> elements;
  float scale;

  explicit HostRow(const std::vector<float>& x) : elements(x.size()) {
    float largest = 0;
    for (const float value : x) {
      const float size = std::fabs(value);
      largest = !(size <= std::numeric_limits<float>::max())
                    ? INFINITY
                    : std::max(largest, size);
    }
    const Int8Scale of_row(largest);
    scale = of_row.back;
    for (size_t i = 0; i < x.size() && of_row.to != 0; ++i) {
      elements[i] = static_cast<int8_t>(std::rint(x[i] * of_row.to));
    }
  }
};

bool SameFloats(float a, float b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0 ||
         (std::isnan(a) && std::isnan(b));
}

void CheckRounding(int64_t k) {
  constexpr int64_t kRows = 11;
  std::vector<float> x(kRows * k);
  for (int64_t i = 0; i < kRows * k; ++i) {
    x[i] = Number<float>(kRowSeed, i);
    if (i / k == 3) x[i] = 0;
    if (i / k == 4) x[i] *= 1e-37f;
    if (i / k == 5) x[i] = static_cast<float>(i % k % 128) - 0.5f;
  }
  x[5 * k] = 127;
  x[6 * k + k / 2] = INFINITY;
  x[7 * k + k - 1] = NAN;
  x[8 * k] = -std::numeric_limits<float>::max();
  const Buffer<float> there(x), scales(kRows);
  const Buffer<int8_t> out(kRows * Int8RowBytes(k));
  Check(LaunchRows(RoundRows{there.data(), k, out.data(), scales.data()}, kRows,
                   nullptr),
        "rounding of rows");
  const std::vector<int8_t> got = out.Read();
  const std::vector<float> got_scales = scales.Read();
  int64_t differences = 0;
  for (int64_t r = 0; r < kRows; ++r) {
    const HostRow row({x.begin() + r * k, x.begin() + (r + 1) * k});
    differences += !SameFloats(got_scales[r], row.scale);
    for (int64_t i = 0; i < Int8RowBytes(k); ++i) {
      differences +=
          got[r * Int8RowBytes(k) + i] != (i < k ? row.elements[i] : 0);
    }
  }
  Report("rows rounded to int8, K " + std::to_string(k), differences == 0,
         static_cast<double>(differences));
}

// Byte of element (row, c) of a matrix [k, n] in panels, and of column c's
// scale.
constexpr int64_t PanelOf(int64_t c) {
  return c / kInt8PanelColumns * kInt8PanelColumns;
}
constexpr int64_t ElementAt(int64_t k, int64_t n, int64_t row, int64_t c) {
  const int64_t begin = PanelOf(c), width = Int8PanelWidth(n - begin);
  return Int8PanelOffset(k, begin) + (row / 4 * width + c - begin) * 4 +
         row % 4;
}
constexpr int64_t ScaleAt(int64_t k, int64_t n, int64_t c) {
  const int64_t begin = PanelOf(c), width = Int8PanelWidth(n - begin);
  return Int8PanelOffset(k, begin) + (k + 3) / 4 * 4 * width + (c - begin) * 4;
}

__global__ void SetScalesKernel(int8_t* panels, int64_t experts, int64_t k,
                                int64_t n) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
       i < experts * n; i += stride) {
    *reinterpret_cast<float*>(panels + i / n * Int8MatrixBytes(k, n) +
                              ScaleAt(k, n, i % n)) =
        Number<float>(kScaleSeed, i);
  }
}

// Random panels, whose padding is not zero: no result depends on it.
struct Panels {
  Panels(int64_t experts, int64_t k, int64_t n)
      : bytes(experts * Int8MatrixBytes(k, n)) {
    Fill(bytes, kPanelSeed);
    SetScalesKernel<<<1024, 256>>>(bytes.data(), experts, k, n);
    Check(cudaGetLastError(), "scales");
  }
  const Buffer<int8_t> bytes;
};

struct Int8Shape {
  std::vector<int32_t> sizes;
  int64_t k, n;
  int64_t rows() const {
    return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  }
};

// Quantizes rows of x and sets them in the product.
struct RowsThere {
  RowsThere(const Buffer<float>& x, int64_t rows, int64_t k)
      : elements(rows * Int8RowBytes(k)), scales(rows) {
    Check(LaunchRows(RoundRows{x.data(), k, elements.data(), scales.data()},
                     rows, nullptr),
          "rounding of rows");
  }
  void SetIn(RaggedProduct<int8_t>& p) const {
    p.rows = elements.data();
    p.row_scales = scales.data();
  }
  const Buffer<int8_t> elements;
  const Buffer<float> scales;
};

void CheckInt8Product(const Int8Shape& s) {
  const auto experts = static_cast<int64_t>(s.sizes.size());
  const Buffer<float> x(s.rows() * s.k), out(s.rows() * s.n),
      again(s.rows() * s.n), ended(s.rows() * s.n), bias(experts * s.n);
  Fill(x, kRowSeed);
  Fill(bias, kBiasSeed);
  const Panels panels(experts, s.k, s.n);
  const RowsThere rows(x, s.rows(), s.k);
  const Rows<int8_t> launches(s.sizes);
  RaggedProduct<int8_t> p = {};
  rows.SetIn(p);
  p.weights = panels.bytes.data();
  p.k = s.k;
  p.n = s.n;
  for (const Buffer<float>* const to : {&out, &again, &ended}) {
    p.out = to->data();
    p.bias = to == &ended ? bias.data() : nullptr;
    p.relu = to == &ended;
    launches.Multiply(p);
  }
  const std::vector<float> got = out.Read(), second = again.Read(),
                           end = ended.Read();
  const std::vector<int64_t> offsets = GroupOffsets(s.sizes);
  int64_t differences =
      std::memcmp(got.data(), second.data(), got.size() * 4) != 0;
  for (const float value : got) differences += std::isnan(value);
  const std::vector<int64_t> columns = Sample(s.n, 200);
  for (const int64_t r : Sample(s.rows(), 60)) {
    int64_t e = 0;
    while (offsets[e + 1] <= r) ++e;
    std::vector<float> of_row(s.k);
    for (int64_t i = 0; i < s.k; ++i) {
      of_row[i] = Number<float>(kRowSeed, r * s.k + i);
    }
    const HostRow row(of_row);
    for (const int64_t c : columns) {
      int32_t sum = 0;
      for (int64_t i = 0; i < s.k; ++i) {
        sum += row.elements[i] *
               Number<int8_t>(kPanelSeed, e * Int8MatrixBytes(s.k, s.n) +
                                              ElementAt(s.k, s.n, i, c));
      }
      const float expected =
          static_cast<float>(sum) *
          (row.scale * Number<float>(kScaleSeed, e * s.n + c));
      const float with_bias = expected + Number<float>(kBiasSeed, e * s.n + c);
      differences += !SameFloats(got[r * s.n + c], expected);
      differences +=
          !SameFloats(end[r * s.n + c], with_bias < 0 ? 0 : with_bias);
    }
  }
  Report("int8 product " + std::to_string(s.rows()) + " rows, " +
             std::to_string(experts) + " experts, K " + std::to_string(s.k) +
             ", N " + std::to_string(s.n),
         differences == 0, static_cast<double>(differences));
}

// The bits of one row among others, at any place.
void CheckInt8Invariance(int64_t k, int64_t n) {
  const Buffer<float> row(k);
  Fill(row, 30);
  const Panels panels(1, k, n);
  std::vector<float> expected;
  int64_t differences = 0;
  for (const int32_t count : {1, 15, 17, 32, 33, 128, 129, 300}) {
    for (const int32_t place : {0, count / 2, count - 1}) {
      const Buffer<float> x(count * k), out(count * n);
      Fill(x, 100 + count);
      Check(cudaMemcpy(x.data() + place * k, row.data(), k * sizeof(float),
                       cudaMemcpyDeviceToDevice),
            "copy");
      const RowsThere rows(x, count, k);
      RaggedProduct<int8_t> p = {};
      rows.SetIn(p);
      p.weights = panels.bytes.data();
      p.k = k;
      p.n = n;
      p.out = out.data();
      Rows<int8_t>({count}).Multiply(p);
      const std::vector<float> got = out.Read(place * n, n);
      if (expected.empty()) expected = got;
      differences += std::memcmp(got.data(), expected.data(), n * 4) != 0;
    }
  }
  Report("int8 a row's bits among other rows, K " + std::to_string(k) + ", N " +
             std::to_string(n),
         differences == 0, static_cast<double>(differences));
}

void CheckPanelColumns(int64_t vocabulary, int64_t width) {
  const Panels panels(1, width, vocabulary);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < 100; ++i) {
    ids.push_back(static_cast<int32_t>((vocabulary - 1) * i / 99));
  }
  const Buffer<int32_t> there(ids);
  const Buffer<float> out(100 * width);
  Check(LaunchElements(PanelColumns{panels.bytes.data(), vocabulary,
                                    there.data(), width, out.data()},
                       100 * width, nullptr),
        "columns of panels");
  CheckExact("rows of an int8 table of " + std::to_string(vocabulary) + " by " +
                 std::to_string(width),
             out, [&](int64_t i) {
               const int64_t id = ids[i / width];
               return Number<float>(kScaleSeed, id) *
                      Number<int8_t>(kPanelSeed, ElementAt(width, vocabulary,
                                                           i % width, id));
             });
}

}  // namespace

void CheckInt8(bool quick) {
  for (const int64_t k : {1, 3, 16, 17, 127, 128, 700}) CheckRounding(k);
  std::vector<Int8Shape> shapes = {
      {{5}, 32, 16},          {{1}, 1, 1},       {{0, 3, 0, 0, 17, 1}, 40, 136},
      {{130, 0, 33}, 72, 24}, {{3, 4}, 13, 9},   {{0, 0}, 8, 8},
      {{7}, 65, 49},          {{2, 40}, 257, 97}};
  if (!quick) {
    shapes.push_back({{1000, 0, 1, 129, 31, 4096}, 1024, 2048});
    shapes.push_back({std::vector<int32_t>(2048, 3), 128, 256});
    shapes.push_back({{333, 64}, 1001, 777});
    shapes.push_back({{3, 40}, kMaxInt8Depth, 50});
    // Weights of more than 2^31 bytes.
    shapes.push_back({std::vector<int32_t>(40, 20), 8192, 8192});
  }
  for (const Int8Shape& shape : shapes) CheckInt8Product(shape);
  CheckInt8Invariance(200, 264);
  if (!quick) CheckInt8Invariance(4096, 1024);
  for (const int64_t vocabulary : {1, 48, 100, 32000}) {
    CheckPanelColumns(vocabulary, 30);
  }
}

}  // namespace gshard::cuda
