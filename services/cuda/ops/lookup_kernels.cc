// Kernels on table rows: embeddings, positions, caches.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "services/base/status_macros.h"
#include "services/cuda/ops/kernel_call.h"
#include "services/cuda/ops/kernel_sets.h"
#include "services/ops/cache.h"
#include "services/ops/embedding.h"

namespace gshard {
namespace {

Dims WithWidth(Dims dims, int64_t width) {
  dims.push_back(width);
  return dims;
}

absl::Status EmbeddingKernel(KernelContext& c) {
  KernelCall call(c);
  ASSIGN_OR_RETURN(const Tensor ids, call.HostOperand(1));
  RETURN_IF_ERROR(CheckIds(ids, c.operands[0].dim(0)));
  const int64_t vocabulary = c.operands[0].dim(0), width = c.operands[0].dim(1);
  ASSIGN_OR_RETURN(const int32_t* const there, call.Ints(1));
  ASSIGN_OR_RETURN(float* const out,
                   call.NewFloats(0, WithWidth(ids.dims(), width)));
  if (c.operands[0].type() == ElementType::kInt8) {
    ASSIGN_OR_RETURN(const Tensor* const panels, call.Operand(0));
    return call.Elements(
        cuda::PanelColumns{In<int8_t>(*panels), vocabulary, there, width, out},
        ids.size() * width);
  }
  ASSIGN_OR_RETURN(const cuda::FloatsOrRounded table, call.FloatsOrRounded(0));
  return call.Elements(cuda::TableRows{table, there, width, out},
                       ids.size() * width);
}

// Positions grouped by id, in ascending order within each id.
struct PositionsById {
  std::vector<int32_t> ids;      // distinct, ascending
  std::vector<int32_t> offsets;  // [ids + 1]: begin of each id in `order`
  std::vector<int32_t> order;

  explicit PositionsById(const Tensor& of) : order(of.size()) {
    std::iota(order.begin(), order.end(), 0);
    const int32_t* const id = of.i32();
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return id[a] < id[b]; });
    for (size_t i = 0; i < order.size(); ++i) {
      if (i > 0 && id[order[i]] == ids.back()) continue;
      ids.push_back(id[order[i]]);
      offsets.push_back(static_cast<int32_t>(i));
    }
    offsets.push_back(static_cast<int32_t>(order.size()));
  }
};

absl::Status EmbeddingGradientKernel(KernelContext& c) {
  KernelCall call(c);
  ASSIGN_OR_RETURN(const Dims dims, c.ResultDims(0));
  ASSIGN_OR_RETURN(const Tensor ids, call.HostOperand(1));
  RETURN_IF_ERROR(CheckIds(ids, dims[0]));
  const PositionsById positions(ids);
  cuda::TableGradient gradient = {};
  ASSIGN_OR_RETURN(gradient.dresult, call.Floats(0));
  ASSIGN_OR_RETURN(gradient.ids, call.Upload(positions.ids));
  ASSIGN_OR_RETURN(gradient.offsets, call.Upload(positions.offsets));
  ASSIGN_OR_RETURN(gradient.order, call.Upload(positions.order));
  gradient.width = dims[1];
  ASSIGN_OR_RETURN(gradient.out, call.NewFloats(0, dims));
  RETURN_IF_ERROR(
      call.Elements(cuda::FillZeros{gradient.out}, NumElements(dims)));
  return call.Elements(gradient, std::ssize(positions.ids) * dims[1]);
}

absl::Status PositionsKernel(KernelContext& c) {
  KernelCall call(c);
  const int64_t width = IntAttribute(c.attributes(), "width");
  ASSIGN_OR_RETURN(const int32_t* const positions, call.Ints(0));
  const Dims dims = WithWidth(c.operands[0].dims(), width);
  ASSIGN_OR_RETURN(float* const out, call.NewFloats(0, dims));
  const double last = static_cast<double>(std::max<int64_t>(width / 2 - 1, 1));
  return call.Elements(
      cuda::PositionRows{positions, width, -std::log(10000.0) / last, out},
      NumElements(dims));
}

// Works in place if nothing else shares the cache.
absl::Status UpdateCacheKernel(KernelContext& c) {
  KernelCall call(c);
  ASSIGN_OR_RETURN(const Tensor slots, call.HostOperand(2));
  const int64_t positions = c.operands[0].dim(0) * c.operands[0].dim(1);
  RETURN_IF_ERROR(CheckSlots(slots, positions));
  ASSIGN_OR_RETURN(const float* const entry, call.Floats(1));
  ASSIGN_OR_RETURN(const int32_t* const there, call.Ints(2));
  RETURN_IF_ERROR(call.Own(0));
  c.results[0] = c.Take(0);
  const int64_t width =
      c.operands[1].size() == 0 ? 0 : c.operands[1].size() / slots.size();
  return call.Elements(
      cuda::PutRows{entry, there, width, Out<float>(c.results[0])},
      c.operands[1].size());
}

}  // namespace

KernelSet LookupKernels() {
  return {{"embedding", EmbeddingKernel},
          {"embedding_gradient", EmbeddingGradientKernel},
          {"sinusoidal_positions", PositionsKernel},
          {"update_cache", UpdateCacheKernel}};
}

}  // namespace gshard
