#include "tests/reference/optimizer.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace gshard::reference {

void AdafactorUpdate(const AdafactorConfig& config,
                     absl::Span<const int64_t> dims, absl::Span<float> weight,
                     absl::Span<const float> gradient, double gradient_scale,
                     absl::Span<const absl::Span<float>> state, int64_t step,
                     double learning_rate) {
  const size_t size = weight.size();
  if (size == 0) return;
  const double b = 1.0 - std::pow(step, -config.decay_exponent);
  std::vector<double> g(size), squares(size), u(size);
  for (size_t k = 0; k < size; ++k) {
    g[k] = gradient[k] * gradient_scale;
    squares[k] = g[k] * g[k] + config.epsilon1;
  }
  const bool is_factored = dims.size() == 2 &&
                           dims[0] >= config.min_dim_size_to_factor &&
                           dims[1] >= config.min_dim_size_to_factor;
  if (is_factored) {
    const int64_t n = dims[0], m = dims[1];
    const absl::Span<float> R = state[0], C = state[1];
    double R_mean = 0.0;
    for (int64_t i = 0; i < n; ++i) {
      double mean = 0.0;
      for (int64_t j = 0; j < m; ++j) mean += squares[i * m + j] / m;
      R[i] = static_cast<float>(b * R[i] + (1.0 - b) * mean);
      R_mean += R[i] / static_cast<double>(n);
    }
    for (int64_t j = 0; j < m; ++j) {
      double mean = 0.0;
      for (int64_t i = 0; i < n; ++i) mean += squares[i * m + j] / n;
      C[j] = static_cast<float>(b * C[j] + (1.0 - b) * mean);
    }
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < m; ++j) {
        u[i * m + j] = g[i * m + j] / std::sqrt(double{R[i]} * C[j] / R_mean);
      }
    }
  } else {
    const absl::Span<float> V = state[0];
    for (size_t k = 0; k < size; ++k) {
      V[k] = static_cast<float>(b * V[k] + (1.0 - b) * squares[k]);
      u[k] = g[k] / std::sqrt(double{V[k]});
    }
  }
  double u_squares = 0.0, w_squares = 0.0;
  for (size_t k = 0; k < size; ++k) {
    u_squares += u[k] * u[k];
    w_squares += double{weight[k]} * weight[k];
  }
  double rate = learning_rate;
  if (config.clipping_threshold > 0) {
    rate /=
        std::max(1.0, std::sqrt(u_squares / size) / config.clipping_threshold);
  }
  if (config.multiply_by_parameter_scale) {
    rate *= std::max(config.epsilon2, std::sqrt(w_squares / size));
  }
  for (size_t k = 0; k < size; ++k) {
    weight[k] = static_cast<float>(weight[k] - rate * u[k]);
  }
}

void AdamUpdate(const AdamConfig& config, absl::Span<float> weight,
                absl::Span<const float> gradient, double gradient_scale,
                absl::Span<const absl::Span<float>> state, int64_t step,
                double learning_rate) {
  const absl::Span<float> first = state[0], second = state[1];
  for (size_t k = 0; k < weight.size(); ++k) {
    const double g = gradient[k] * gradient_scale;
    const double m = config.beta1 * first[k] + (1.0 - config.beta1) * g;
    const double v = config.beta2 * second[k] + (1.0 - config.beta2) * g * g;
    const double m_hat = m / (1.0 - std::pow(config.beta1, step));
    const double v_hat = v / (1.0 - std::pow(config.beta2, step));
    weight[k] = static_cast<float>(
        weight[k] - learning_rate * config.weight_decay * weight[k] -
        learning_rate * m_hat / (std::sqrt(v_hat) + config.epsilon));
    first[k] = static_cast<float>(m);
    second[k] = static_cast<float>(v);
  }
}

double SumOfSquares(absl::Span<const float> values) {
  double sum = 0.0;
  for (const float value : values) sum += double{value} * value;
  return sum;
}

}  // namespace gshard::reference
