#include "services/cuda/ops/products.h"

#include <limits>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/status_macros.h"
#include "services/cuda/kernels/launch.h"

namespace gshard {
namespace {

absl::Status CheckSizes(int64_t batch, int64_t rows) {
  const int64_t most = std::numeric_limits<int32_t>::max();
  if (batch <= most && rows <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "expected at most ", most, " matrices and rows of each on a GPU, got ",
      batch, " and ", rows));
}

// Launches a product of `batch` matrices on the tiles that suit its type and m.
template <typename T>
absl::Status LaunchEven(KernelCall& call, const ProductSizes& sizes,
                        cuda::RaggedProduct<T> product) {
  RETURN_IF_ERROR(CheckSizes(sizes.batch, sizes.m));
  product.rows_of_each = static_cast<int32_t>(sizes.m);
  const auto tiles = [&](int rows) {
    return sizes.batch * cuda::BlocksAlong(sizes.m, rows);
  };
  if constexpr (std::is_same_v<T, float>) {
    product.num_tiles = tiles(cuda::FloatTile::kRows);
  } else {
    if (sizes.m <= cuda::kFewRows) {
      product.num_tiles = tiles(cuda::SmallTile::kRows);
      return call.Launched(
          cuda::LaunchSmallRaggedProduct(product, call.stream()));
    }
    product.num_tiles = tiles(cuda::LargeTile::kRows);
  }
  return call.Launched(cuda::LaunchRaggedProduct(product, call.stream()));
}

}  // namespace

template <typename T>
absl::Status Multiply(KernelCall& call, const ProductSizes& sizes, const T* a,
                      const T* b, bool transposed, float* out) {
  cuda::RaggedProduct<T> product = {};
  product.rows = a;
  product.weights = b;
  product.transposed = transposed;
  product.k = sizes.k;
  product.n = sizes.n;
  product.out = out;
  return LaunchEven(call, sizes, product);
}

absl::Status Multiply(KernelCall& call, const ProductSizes& sizes,
                      const float* a, const int8_t* b, float* out) {
  CHECK(sizes.batch == 1);
  cuda::RaggedProduct<int8_t> product = {};
  product.weights = b;
  product.k = sizes.k;
  product.n = sizes.n;
  product.out = out;
  RETURN_IF_ERROR(SetRows(call, a, sizes.m, product));
  return LaunchEven(call, sizes, product);
}

absl::Status SetRows(KernelCall& call, const float* rows, int64_t m,
                     cuda::RaggedProduct<int8_t>& product) {
  ASSIGN_OR_RETURN(int8_t* const rounded,
                   call.Scratch<int8_t>(m * cuda::Int8RowBytes(product.k)));
  ASSIGN_OR_RETURN(float* const scales, call.Scratch<float>(m));
  product.rows = rounded;
  product.row_scales = scales;
  return call.Rows(cuda::RoundRows{rows, product.k, rounded, scales}, m);
}

template <typename T>
absl::Status MultiplyTransposed(KernelCall& call, const ProductSizes& sizes,
                                const T* a, const T* b, float* out) {
  RETURN_IF_ERROR(CheckSizes(sizes.batch, sizes.k));
  cuda::RaggedWeightsGradient<T> gradient = {};
  gradient.rows = a;
  gradient.dresult = b;
  gradient.experts = sizes.batch;
  gradient.rows_of_each = static_cast<int32_t>(sizes.k);
  gradient.k = sizes.m;
  gradient.n = sizes.n;
  gradient.out = out;
  return call.Launched(
      cuda::LaunchRaggedWeightsGradient(gradient, call.stream()));
}

template absl::Status Multiply(KernelCall&, const ProductSizes&, const float*,
                               const float*, bool, float*);
template absl::Status Multiply(KernelCall&, const ProductSizes&,
                               const BFloat16*, const BFloat16*, bool, float*);
template absl::Status MultiplyTransposed(KernelCall&, const ProductSizes&,
                                         const float*, const float*, float*);
template absl::Status MultiplyTransposed(KernelCall&, const ProductSizes&,
                                         const BFloat16*, const BFloat16*,
                                         float*);

}  // namespace gshard
