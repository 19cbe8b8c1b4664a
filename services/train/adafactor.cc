#include <algorithm>
#include <cmath>
#include <vector>

#include "services/base/check.h"
#include "services/graph/device.h"
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

// The sum of (g[j] * a * c[j])^2: the sum of squares of one row of U.
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

// Updates the full second moment, and computes its inverse square root.
GSHARD_SIMD void UpdateSecondMoment(const AdafactorStep step, const float* g,
                                    int64_t size, float* v,
                                    float* inverse_root) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    v[i] = step.Moment(v[i], static_cast<double>(g[i]) * g[i], 1.0);
    inverse_root[i] = step.ElementFactor(v[i]);
  }
}

// Updates R and C by one step, and computes 1 / sqrt(R C^T / mean(R)) as the
// product of a factor per row and one per column.
void UpdateFactors(const AdafactorStep& step, absl::Span<const float> gradient,
                   absl::Span<float> row, absl::Span<float> column,
                   absl::Span<float> row_factor,
                   absl::Span<float> column_factor) {
  const int64_t n = row_factor.size(), m = column_factor.size();
  CHECK(row.size() == row_factor.size());
  CHECK(column.size() == column_factor.size());
  std::vector<double> column_squares(m, 0.0);
  double row_sum = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    const auto g = gradient.subspan(i * m, m);
    AddSquares(g.data(), m, column_squares.data());
    row[i] = step.Moment(row[i], SumOfSquares(g), static_cast<double>(m));
    row_sum += row[i];
  }
  const double row_mean = row_sum / static_cast<double>(n);
  for (int64_t i = 0; i < n; ++i) {
    row_factor[i] = step.RowFactor(row_mean, row[i]);
  }
  for (int64_t j = 0; j < m; ++j) {
    column[j] =
        step.Moment(column[j], column_squares[j], static_cast<double>(n));
    column_factor[j] = step.ColumnFactor(column[j]);
  }
}

class Adafactor final : public Optimizer {
 public:
  explicit Adafactor(const AdafactorConfig& config) : config_(config) {}

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
    UpdateByAdafactor(Numbers(dims, gradient_scale, step, learning_rate), dims,
                      weight, gradient, state);
  }

  absl::Status Update(DeviceRun& run, int64_t parts,
                      absl::Span<const int64_t> dims, Tensor& weight,
                      const Tensor& gradient, double gradient_scale,
                      absl::Span<Tensor> state, int64_t step,
                      double learning_rate) const override {
    return run.Update(Numbers(dims, gradient_scale, step, learning_rate), parts,
                      dims, gradient, weight, state);
  }

 private:
  AdafactorStep Numbers(absl::Span<const int64_t> dims, double gradient_scale,
                        int64_t step, double learning_rate) const {
    CHECK(step >= 1);
    return {.gradient_scale = gradient_scale,
            .decay = 1.0 - std::pow(static_cast<double>(step),
                                    -config_.decay_exponent),
            .epsilon1 = config_.epsilon1,
            .epsilon2 = config_.epsilon2,
            .clip_threshold = config_.clipping_threshold,
            .learning_rate = learning_rate,
            .multiply_by_parameter_scale = config_.multiply_by_parameter_scale,
            .factored = IsFactored(dims)};
  }

  bool IsFactored(absl::Span<const int64_t> dims) const {
    return dims.size() == 2 &&
           std::min(dims[0], dims[1]) >= config_.min_dim_size_to_factor;
  }

  const AdafactorConfig config_;
};

}  // namespace

void UpdateByAdafactor(const AdafactorStep& step,
                       absl::Span<const int64_t> dims, absl::Span<float> weight,
                       absl::Span<const float> gradient,
                       absl::Span<const absl::Span<float>> state) {
  CHECK(weight.size() == static_cast<size_t>(NumElements(dims)));
  CHECK(gradient.size() == weight.size());
  if (weight.empty()) return;
  // U[i, j] = gradient[i, j] * row_factor[i] * column_factor[j]
  std::vector<float> row_factor, column_factor;
  if (step.factored) {
    CHECK(state.size() == 2);
    row_factor.resize(dims[0]);
    column_factor.resize(dims[1]);
    UpdateFactors(step, gradient, state[0], state[1],
                  absl::MakeSpan(row_factor), absl::MakeSpan(column_factor));
  } else {
    CHECK(state.size() == 1 && state[0].size() == weight.size());
    row_factor.assign(1, step.RowFactor());
    column_factor.resize(weight.size());
    UpdateSecondMoment(step, gradient.data(), weight.size(), state[0].data(),
                       column_factor.data());
  }
  const int64_t n = row_factor.size(), m = column_factor.size();
  double update_squares = 0.0, weight_squares = 0.0;
  if (step.multiply_by_parameter_scale) weight_squares = SumOfSquares(weight);
  for (int64_t i = 0; step.clip_threshold > 0 && i < n; ++i) {
    update_squares += SumSquaredUpdate(&gradient[i * m], row_factor[i],
                                       column_factor.data(), m);
  }
  const float rate = step.Rate(update_squares, weight_squares,
                               static_cast<double>(weight.size()));
  for (int64_t i = 0; i < n; ++i) {
    ApplyUpdate(&gradient[i * m], row_factor[i], column_factor.data(), rate, m,
                &weight[i * m]);
  }
}

std::unique_ptr<Optimizer> MakeAdafactor(const AdafactorConfig& config) {
  return std::make_unique<Adafactor>(config);
}

}  // namespace gshard
