// Kernels on the rows of experts.

#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/cuda/kernels/launch.h"
#include "services/cuda/ops/kernel_call.h"
#include "services/cuda/ops/kernel_sets.h"
#include "services/cuda/ops/products.h"
#include "services/graph/kernel_calls.h"
#include "services/partition/ops/part_position.h"

namespace gshard {
namespace {

constexpr int32_t kNoLimit = std::numeric_limits<int32_t>::max();

// Launches a product on the tiles that suit the type of its factors, bfloat16
// or int8.
template <typename T>
absl::Status LaunchTiles(KernelCall& call, std::span<const int32_t> sizes,
                         cuda::RaggedProduct<T> product) {
  const std::vector<cuda::RaggedTile> large = cuda::RaggedTiles(
      sizes, cuda::LargeTile::kRows, cuda::kFewRows, kNoLimit);
  const std::vector<cuda::RaggedTile> small =
      cuda::RaggedTiles(sizes, cuda::SmallTile::kRows, 0, cuda::kFewRows);
  if (!large.empty()) {
    ASSIGN_OR_RETURN(product.tiles, call.Upload(large));
    product.num_tiles = std::ssize(large);
    RETURN_IF_ERROR(
        call.Launched(cuda::LaunchRaggedProduct(product, call.stream())));
  }
  if (small.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(product.tiles, call.Upload(small));
  product.num_tiles = std::ssize(small);
  return call.Launched(cuda::LaunchSmallRaggedProduct(product, call.stream()));
}

absl::Status LaunchTiles(KernelCall& call, std::span<const int32_t> sizes,
                         cuda::RaggedProduct<float> product) {
  const std::vector<cuda::RaggedTile> tiles =
      cuda::RaggedTiles(sizes, cuda::FloatTile::kRows, 0, kNoLimit);
  if (tiles.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(product.tiles, call.Upload(tiles));
  product.num_tiles = std::ssize(tiles);
  return call.Launched(cuda::LaunchRaggedProduct(product, call.stream()));
}

// rows [R, K] times weights [E, K, N], or [E, N, K] if kTransposed. If these
// are int8, rows are float32 and quantized first. For a fused node
// (fuse_products.h), also the operators fused into it.
template <typename T, bool kTransposed>
absl::Status MultiplyRows(KernelContext& c) {
  KernelCall call(c);
  ASSIGN_OR_RETURN(const Tensor* const rows, call.Operand(0));
  ASSIGN_OR_RETURN(const Tensor* const weights, call.Operand(1));
  ASSIGN_OR_RETURN(const auto sizes, call.GroupSizes(2, rows->dim(0)));
  cuda::RaggedProduct<T> product = {};
  product.weights = In<T>(*weights);
  product.transposed = kTransposed;
  product.k = rows->dim(1);
  product.n = weights->dim(kTransposed ? 1 : 2);
  if constexpr (std::is_same_v<T, int8_t>) {
    RETURN_IF_ERROR(SetRows(call, In<float>(*rows), rows->dim(0), product));
  } else {
    product.rows = In<T>(*rows);
  }
  if (c.operands.size() > 3) {
    ASSIGN_OR_RETURN(const Tensor* const bias, call.Operand(3));
    product.bias = In<float>(*bias);
  }
  product.relu = c.attributes().contains("relu") &&
                 IntAttribute(c.attributes(), "relu") != 0;
  ASSIGN_OR_RETURN(Tensor* const out,
                   call.NewResult(0, {rows->dim(0), product.n}));
  if (out->type() == ElementType::kBFloat16) {
    product.rounded_out = Out<BFloat16>(*out);
  } else {
    product.out = Out<float>(*out);
  }
  return LaunchTiles(call, sizes, product);
}

template <bool kTransposed>
absl::Status RowsKernel(KernelContext& c) {
  return c.operands[0].type() == ElementType::kBFloat16
             ? MultiplyRows<BFloat16, kTransposed>(c)
             : MultiplyRows<float, kTransposed>(c);
}

absl::Status RaggedDotKernel(KernelContext& c) {
  return c.operands[1].type() == ElementType::kInt8
             ? MultiplyRows<int8_t, /*kTransposed=*/false>(c)
             : RowsKernel</*kTransposed=*/false>(c);
}

template <typename T>
absl::Status WeightsGradient(KernelContext& c) {
  KernelCall call(c);
  ASSIGN_OR_RETURN(const Tensor* const rows, call.Operand(0));
  ASSIGN_OR_RETURN(const Tensor* const dresult, call.Operand(1));
  ASSIGN_OR_RETURN(const auto sizes, call.GroupSizes(2, rows->dim(0)));
  cuda::RaggedWeightsGradient<T> gradient = {};
  gradient.rows = In<T>(*rows);
  gradient.dresult = In<T>(*dresult);
  gradient.experts = std::ssize(sizes);
  gradient.k = rows->dim(1);
  gradient.n = dresult->dim(1);
  ASSIGN_OR_RETURN(gradient.offsets, call.Upload(cuda::GroupOffsets(sizes)));
  ASSIGN_OR_RETURN(
      Tensor* const out,
      call.NewResult(0, {gradient.experts, gradient.k, gradient.n}));
  gradient.out = Out<float>(*out);
  return call.Launched(
      cuda::LaunchRaggedWeightsGradient(gradient, call.stream()));
}

absl::Status WeightsGradientKernel(KernelContext& c) {
  return c.operands[0].type() == ElementType::kBFloat16
             ? WeightsGradient<BFloat16>(c)
             : WeightsGradient<float>(c);
}

absl::Status BiasAddKernel(KernelContext& c) {
  KernelCall call(c);
  ASSIGN_OR_RETURN(const Tensor* const rows, call.Operand(0));
  ASSIGN_OR_RETURN(const Tensor* const bias, call.Operand(1));
  ASSIGN_OR_RETURN(const auto sizes, call.GroupSizes(2, rows->dim(0)));
  ASSIGN_OR_RETURN(Tensor* const out, call.NewResult(0, rows->dims()));
  const std::vector<cuda::RaggedTile> tiles =
      cuda::RaggedTiles(sizes, cuda::SmallTile::kRows, 0, kNoLimit);
  ASSIGN_OR_RETURN(const cuda::RaggedTile* const tiles_there,
                   call.Upload(tiles));
  return call.Launched(cuda::LaunchRaggedBiasAdd(
      {In<float>(*rows), In<float>(*bias), tiles_there, std::ssize(tiles),
       rows->dim(1), Out<float>(*out)},
      call.stream()));
}

absl::Status BiasGradientKernel(KernelContext& c) {
  KernelCall call(c);
  ASSIGN_OR_RETURN(const Tensor* const dresult, call.Operand(0));
  ASSIGN_OR_RETURN(const auto sizes, call.GroupSizes(1, dresult->dim(0)));
  ASSIGN_OR_RETURN(const int64_t* const offsets,
                   call.Upload(cuda::GroupOffsets(sizes)));
  const int64_t experts = std::ssize(sizes), n = dresult->dim(1);
  ASSIGN_OR_RETURN(Tensor* const out, call.NewResult(0, {experts, n}));
  return call.Launched(cuda::LaunchRaggedBiasGradient(
      {In<float>(*dresult), offsets, experts, n, Out<float>(*out)},
      call.stream()));
}

// x [R, width] holds columns [first_column, first_column + width) of a tensor
// with `columns` columns.
absl::Status DropOut(KernelContext& c, int64_t first_column, int64_t columns) {
  KernelCall call(c);
  ASSIGN_OR_RETURN(const Tensor rows, call.HostOperand(1));
  for (const int32_t row : rows.span<int32_t>()) {
    if (row < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("rows must not be negative, got ", row));
    }
  }
  ASSIGN_OR_RETURN(const Tensor key, call.HostOperand(2));
  const DropoutMask mask(
      static_cast<float>(FloatAttribute(c.attributes(), "rate")),
      DropoutKeyOf(c));
  ASSIGN_OR_RETURN(const Tensor* const x, call.Operand(0));
  ASSIGN_OR_RETURN(const Tensor* const rows_there, call.Operand(1));
  ASSIGN_OR_RETURN(Tensor* const out, call.NewResult(0, x->dims()));
  return call.Launched(cuda::LaunchElements(
      cuda::DropoutRows{In<float>(*x), In<int32_t>(*rows_there), x->dim(1),
                        first_column, columns, mask, Out<float>(*out)},
      x->size(), call.stream()));
}

absl::Status DropoutRowsKernel(KernelContext& c) {
  return DropOut(c, 0, c.operands[0].dim(1));
}

absl::Status DropoutRowsPartKernel(KernelContext& c) {
  ASSIGN_OR_RETURN(const PartPosition at,
                   FindPosition(c, c.operands[0].dims()));
  return DropOut(c, at.begin[1], at.whole[1]);
}

}  // namespace

KernelSet ExpertKernels() {
  return {{"dropout_rows", DropoutRowsKernel},
          {"dropout_rows_part", DropoutRowsPartKernel},
          {"fused_ragged_dot", RaggedDotKernel},
          {"ragged_bias_add", BiasAddKernel},
          {"ragged_bias_gradient", BiasGradientKernel},
          {"ragged_dot", RaggedDotKernel},
          {"ragged_dot_rows_gradient", RowsKernel</*kTransposed=*/true>},
          {"ragged_dot_weights_gradient", WeightsGradientKernel}};
}

}  // namespace gshard
