// What training does with parameters and gradients: sums of gradients, and the
// steps of services/ops/adam_step.h and adafactor_step.h, with the arithmetic
// of the CPU's: the same bits, but that Adafactor's RMS of a weight of more
// than kSumWidth elements is summed in another order. All pointers are the
// device's.
//
// Compiled without fused multiply-adds.

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

// Adafactor, of parts [n, m] that follow each other; p counts them, r their
// rows, c their columns, all of all parts.
//
// R [p, n], from the squares of the gradient's rows.
struct RowMoments {
  AdafactorStep step;
  int64_t m;
  const double* squares;
  float* row;

  GSHARD_KERNEL_INLINE void operator()(int64_t r) const {
    row[r] = step.Moment(row[r], squares[r], static_cast<double>(m));
  }
};

// mean [p] of R.
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

// C [p, m], and the factors that follow of it.
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
    for (int64_t i = 0; i < n; ++i) {
      const double g = first[i * m];
      squares += g * g;
    }
    column[c] = step.Moment(column[c], squares, static_cast<double>(n));
    factor[c] = step.ColumnFactor(column[c]);
  }
};

// V, element by element.
struct SecondMoments {
  AdafactorStep step;
  const float* gradient;
  float* second;

  GSHARD_KERNEL_INLINE void operator()(int64_t i) const {
    const double g = gradient[i];
    second[i] = step.Moment(second[i], g * g, 1.0);
  }
};

// Elements of U.
struct AdafactorUpdate {
  AdafactorStep step;
  int64_t n;
  int64_t m;
  const float* gradient;
  const float* row_factor = nullptr;     // with R and C: [p, n]
  const float* column_factor = nullptr;  // [p, m]
  const float* second = nullptr;         // else V

  // Element i, of row r, which is of part r / n.
  GSHARD_KERNEL_INLINE float At(int64_t r, int64_t i) const {
    if (second != nullptr) {
      return gradient[i] * step.RowFactor() * step.ElementFactor(second[i]);
    }
    return gradient[i] * row_factor[r] * column_factor[r / n * m + i - r * m];
  }
  // Its square: a function of RowSums.
  GSHARD_KERNEL_INLINE double operator()(int64_t r, int64_t i) const {
    const double wide = At(r, i);
    return wide * wide;
  }
};

// What U is multiplied by, of each part, of the sums of squares of the rows of
// U and of W, which is in rows of kSumWidth; either may have none.
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

// W -= rate U. A block for kStepColumns columns of a row.
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
