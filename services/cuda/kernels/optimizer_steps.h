// The kernels that training runs on parameters and gradients: sums of
// gradients, and the steps of services/ops/adam_step.h and adafactor_step.h.
// The arithmetic is that of the CPU and gives the same bits, with one
// exception: Adafactor's RMS of a weight of more than kSumWidth elements is
// summed in another order. All pointers are device pointers.
//
// Compiled without contraction to fused multiply-adds.

#ifndef SERVICES_CUDA_KERNELS_OPTIMIZER_STEPS_H_
#define SERVICES_CUDA_KERNELS_OPTIMIZER_STEPS_H_

#include <cstdint>

#include "services/cuda/kernels/block.h"
#include "services/cuda/kernels/elementwise.h"
#include "services/cuda/kernels/row_sums.h"
#include "services/ops/adafactor_step.h"
#include "services/ops/adam_step.h"

namespace gshard::cuda {

struct AddTo {
  const float* x;
  float* sum;

  GSHARD_KERNEL_INLINE void operator()(int64_t i) const { sum[i] += x[i]; }
};

struct AdamElements {
  AdamStep step;
  const float* gradient;
  float* weight;
  float* first;
  float* second;

  GSHARD_KERNEL_INLINE void operator()(int64_t i) const {
    float w = weight[i], a = first[i], b = second[i];
    step.Update(gradient[i], w, a, b);
    weight[i] = w;
    first[i] = a;
    second[i] = b;
  }
};

// Adafactor (services/train/optimizer.h) on consecutive parts [n, m]. Indices
// run over all parts: p over the parts, r over their rows, c over their
// columns.
//
// Updates R [p, n] from the sums of squares of the gradient's rows.
struct RowMoments {
  AdafactorStep step;
  int64_t m;
  const double* squares;
  float* row;

  GSHARD_KERNEL_INLINE void operator()(int64_t r) const {
    row[r] = step.Moment(row[r], squares[r], static_cast<double>(m));
  }
};

// mean [p]: the mean of each part's R.
struct RowMeans {
  int64_t n;
  const float* row;
  double* mean;

  GSHARD_KERNEL_INLINE void operator()(int64_t p) const {
    double sum = 0.0;
    for (int64_t r = p * n; r < (p + 1) * n; ++r) sum += row[r];
    mean[p] = sum / static_cast<double>(n);
  }
};

struct RowFactors {
  AdafactorStep step;
  int64_t n;
  const float* row;
  const double* mean;
  float* factor;  // [p, n]

  GSHARD_KERNEL_INLINE void operator()(int64_t r) const {
    factor[r] = step.RowFactor(mean[r / n], row[r]);
  }
};

// Updates C [p, m], and computes the column factors from it.
struct ColumnMoments {
  AdafactorStep step;
  int64_t n;
  int64_t m;
  const float* gradient;
  float* column;
  float* factor;  // [p, m]

  GSHARD_KERNEL_INLINE void operator()(int64_t c) const {
    const float* const first = gradient + c / m * n * m + c % m;
    double squares = 0.0;
    GSHARD_UNROLL_16 for (int64_t i = 0; i < n; ++i) {
      const double g = first[i * m];
      squares += g * g;
    }
    column[c] = step.Moment(column[c], squares, static_cast<double>(n));
    factor[c] = step.ColumnFactor(column[c]);
  }
};

// Updates V, element by element.
struct SecondMoments {
  AdafactorStep step;
  const float* gradient;
  float* second;

  GSHARD_KERNEL_INLINE void operator()(int64_t i) const {
    const double g = gradient[i];
    second[i] = step.Moment(second[i], g * g, 1.0);
  }
};

// The elements of U.
struct AdafactorUpdate {
  AdafactorStep step;
  int64_t n;
  int64_t m;
  const float* gradient;
  const float* row_factor = nullptr;     // if factored: [p, n]
  const float* column_factor = nullptr;  // [p, m]
  const float* second = nullptr;         // otherwise: V

  // Element i, which is in row r, of part r / n.
  GSHARD_KERNEL_INLINE float At(int64_t r, int64_t i) const {
    if (second != nullptr) {
      return gradient[i] * step.RowFactor() * step.ElementFactor(second[i]);
    }
    return gradient[i] * row_factor[r] * column_factor[r / n * m + i - r * m];
  }
  // The square of the element, for RowSums.
  GSHARD_KERNEL_INLINE double operator()(int64_t r, int64_t i) const {
    const double wide = At(r, i);
    return wide * wide;
  }
};

// rate [p]: the factor of U in each part's update, from the sums of squares of
// the rows of U and of W; W is cut into rows of kSumWidth elements. An empty
// PartSums counts as a sum of 0.
struct Rates {
  AdafactorStep step;
  int64_t size;  // of a part
  PartSums update = {};
  PartSums weight = {};
  float* rate;  // [p]

  GSHARD_KERNEL_INLINE void operator()(int64_t p) const {
    rate[p] =
        step.Rate(update.Sum(p), weight.Sum(p), static_cast<double>(size));
  }
};

// W -= rate U. One block per kStepColumns columns of a row.
inline constexpr int64_t kStepColumns = 4 * kElementThreads;

struct ApplyUpdate {
  AdafactorUpdate update;
  int64_t rows;  // of all parts
  const float* rate;
  float* weight;
};

constexpr int64_t BlocksOf(const ApplyUpdate& a) {
  return a.rows * BlocksAlong(a.update.m, kStepColumns);
}

GSHARD_KERNEL_INLINE void ApplyUpdateBlock(const ApplyUpdate& a) {
  const int64_t across = BlocksAlong(a.update.m, kStepColumns);
  const int64_t r = BlockIndex() / across;
  const int64_t begin = BlockIndex() % across * kStepColumns;
  const int64_t left = a.update.m - begin;
  const int64_t count = left < kStepColumns ? left : kStepColumns;
  const float rate = a.rate[r / a.update.n];
  for (int64_t j = ThreadIndex(); j < count; j += BlockThreads()) {
    const int64_t i = r * a.update.m + begin + j;
    a.weight[i] -= rate * a.update.At(r, i);
  }
}

}  // namespace gshard::cuda

#endif  // SERVICES_CUDA_KERNELS_OPTIMIZER_STEPS_H_
