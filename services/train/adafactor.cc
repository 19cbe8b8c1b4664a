#include <algorithm>
#include <cmath>
#include <vector>

#include "services/base/check.h"
#include "services/base/status_macros.h"
#include "services/ops/simd.h"
#include "services/train/gradient_norm.h"
#include "services/train/lanes.h"
#include "services/train/optimizer_kinds.h"

namespace gshard {
namespace {

// columns[j] += row[j]^2
GSHARD_SIMD void AddSquares(const float* row, int64_t m, double* columns) {
#pragma omp simd
  for (int64_t j = 0; j < m; ++j) {
    columns[j] += static_cast<double>(row[j]) * row[j];
  }
}

// The sum of (g[j] * a * c[j])^2: the squares of one row of U.
GSHARD_SIMD double SumSquaredUpdate(const float* g, float a, const float* c,
                                    int64_t m) {
  return SumLanes(
      m, [=](DoubleLanes & out, int64_t j, int64_t count)
             __attribute__((always_inline)) {
               FloatLanes x, y;
               LoadLanes(x, g + j, count);
               LoadLanes(y, c + j, count);
               const FloatLanes u = x * a * y;
               const DoubleLanes wide = __builtin_convertvector(u, DoubleLanes);
               out = wide * wide;
             });
}

// w[j] -= rate * (g[j] * a * c[j])
GSHARD_SIMD void ApplyUpdate(const float* g, float a, const float* c,
                             float rate, int64_t m, float* w) {
#pragma omp simd
  for (int64_t j = 0; j < m; ++j) w[j] -= rate * (g[j] * a * c[j]);
}

// The full second moment, and its inverse square root.
GSHARD_SIMD void UpdateSecondMoment(const float* g, double scale2, double decay,
                                    double epsilon1, int64_t size, float* v,
                                    float* inverse_root) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    const double square = scale2 * (static_cast<double>(g[i]) * g[i]);
    v[i] =
        static_cast<float>(decay * v[i] + (1.0 - decay) * (square + epsilon1));
    inverse_root[i] = 1.0f / std::sqrt(v[i]);
  }
}

double Rms(absl::Span<const float> values) {
  if (values.empty()) return 0.0;
  return std::sqrt(SumOfSquares(values) / static_cast<double>(values.size()));
}

class Adafactor final : public Optimizer {
 public:
  explicit Adafactor(const AdafactorOptions& options) : options_(options) {}

  std::vector<NamedShape> StateShapes(
      absl::Span<const int64_t> dims) const override {
    if (IsFactored(dims)) {
      return {{"row", {dims[0]}}, {"column", {dims[1]}}};
    }
    return {{"second", Dims(dims.begin(), dims.end())}};
  }

  void Update(absl::Span<const int64_t> dims, absl::Span<float> weight,
              absl::Span<const float> gradient, double gradient_scale,
              absl::Span<const absl::Span<float>> state, int64_t step,
              double learning_rate) const override {
    CHECK(step >= 1);
    CHECK(weight.size() == static_cast<size_t>(NumElements(dims)));
    CHECK(gradient.size() == weight.size());
    if (weight.empty()) return;
    const double decay =
        1.0 - std::pow(static_cast<double>(step), -options_.decay_exponent);
    const double scale2 = gradient_scale * gradient_scale;

    // U[i, j] = gradient[i, j] * row_factor[i] * column_factor[j]
    std::vector<float> row_factor, column_factor;
    if (IsFactored(dims)) {
      CHECK(state.size() == 2);
      row_factor.resize(dims[0]);
      column_factor.resize(dims[1]);
      UpdateFactors(gradient, scale2, decay, state[0], state[1],
                    absl::MakeSpan(row_factor), absl::MakeSpan(column_factor));
    } else {
      CHECK(state.size() == 1 && state[0].size() == weight.size());
      row_factor.assign(1, 1.0f);
      column_factor.resize(weight.size());
      UpdateSecondMoment(gradient.data(), scale2, decay, options_.epsilon1,
                         weight.size(), state[0].data(), column_factor.data());
    }
    for (float& factor : row_factor) {
      factor = static_cast<float>(factor * gradient_scale);
    }

    const int64_t n = row_factor.size(), m = column_factor.size();
    double rate = learning_rate;
    if (options_.multiply_by_parameter_scale) {
      rate *= std::max(options_.epsilon2, Rms(weight));
    }
    if (options_.clip_threshold > 0) {
      double squares = 0.0;
      for (int64_t i = 0; i < n; ++i) {
        squares += SumSquaredUpdate(&gradient[i * m], row_factor[i],
                                    column_factor.data(), m);
      }
      const double rms =
          std::sqrt(squares / static_cast<double>(weight.size()));
      rate /= std::max(1.0, rms / options_.clip_threshold);
    }
    for (int64_t i = 0; i < n; ++i) {
      ApplyUpdate(&gradient[i * m], row_factor[i], column_factor.data(),
                  static_cast<float>(rate), m, &weight[i * m]);
    }
  }

 private:
  bool IsFactored(absl::Span<const int64_t> dims) const {
    return dims.size() == 2 &&
           std::min(dims[0], dims[1]) >= options_.min_dim_size_to_factor;
  }

  // Moves R and C on by one step, and gives 1 / sqrt(R C^T / mean(R)) as the
  // product of a factor per row and one per column.
  void UpdateFactors(absl::Span<const float> gradient, double scale2,
                     double decay, absl::Span<float> row,
                     absl::Span<float> column, absl::Span<float> row_factor,
                     absl::Span<float> column_factor) const {
    const int64_t n = row_factor.size(), m = column_factor.size();
    CHECK(row.size() == row_factor.size());
    CHECK(column.size() == column_factor.size());
    std::vector<double> column_squares(m, 0.0);
    double row_sum = 0.0;
    for (int64_t i = 0; i < n; ++i) {
      const auto g = gradient.subspan(i * m, m);
      AddSquares(g.data(), m, column_squares.data());
      const double mean = scale2 * SumOfSquares(g) / static_cast<double>(m);
      row[i] = static_cast<float>(decay * row[i] +
                                  (1.0 - decay) * (mean + options_.epsilon1));
      row_sum += row[i];
    }
    const double row_mean = row_sum / static_cast<double>(n);
    for (int64_t i = 0; i < n; ++i) {
      row_factor[i] = static_cast<float>(std::sqrt(row_mean / row[i]));
    }
    for (int64_t j = 0; j < m; ++j) {
      const double mean = scale2 * column_squares[j] / static_cast<double>(n);
      column[j] = static_cast<float>(
          decay * column[j] + (1.0 - decay) * (mean + options_.epsilon1));
      column_factor[j] =
          static_cast<float>(1.0 / std::sqrt(static_cast<double>(column[j])));
    }
  }

  const AdafactorOptions options_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Optimizer>> CreateAdafactor(
    const AdafactorOptions& options) {
  RETURN_IF_ERROR(CheckOption(
      options.decay_exponent > 0 && options.decay_exponent <= 1,
      "adafactor decay_exponent", "(0, 1]", options.decay_exponent));
  RETURN_IF_ERROR(
      CheckOption(options.epsilon1 >= 1e-37 && options.epsilon1 <= 1,
                  "adafactor epsilon1", "[1e-37, 1]", options.epsilon1));
  RETURN_IF_ERROR(CheckOption(options.epsilon2 >= 0 && options.epsilon2 <= 1,
                              "adafactor epsilon2", "[0, 1]",
                              options.epsilon2));
  RETURN_IF_ERROR(CheckOption(
      options.clip_threshold >= 0 && std::isfinite(options.clip_threshold),
      "adafactor clip_threshold", "[0, inf)", options.clip_threshold));
  RETURN_IF_ERROR(CheckOption(options.min_dim_size_to_factor >= 1,
                              "adafactor min_dim_size_to_factor", "[1, inf)",
                              options.min_dim_size_to_factor));
  return std::make_unique<Adafactor>(options);
}

}  // namespace gshard
