// Kernels that rearrange elements or reduce over dimensions. Integers use the
// CPU's kernels.

#include <algorithm>

#include "services/base/status_macros.h"
#include "services/cuda/ops/kernel_call.h"
#include "services/cuda/ops/kernel_sets.h"
#include "services/cuda/ops/row_major.h"
#include "services/graph/kernel_calls.h"

namespace gshard {
namespace {

// `kernel`, or the CPU's if the first operand is not float32, or if it or the
// result has too many dimensions.
Kernel OfFloats(const char* op, absl::Status (*kernel)(KernelContext&)) {
  return [kernel, host = OnHost(op)](KernelContext& c) {
    const bool floats = c.operands[0].type() == ElementType::kFloat32;
    const int64_t rank =
        std::max<int64_t>(c.operands[0].rank(), c.result_types[0].shape.size());
    return floats && rank <= cuda::kMostDims ? kernel(c) : host(c);
  };
}

absl::Status TransposeKernel(KernelContext& c) {
  KernelCall call(c);
  ASSIGN_OR_RETURN(const float* const x, call.Floats(0));
  const cuda::Strides whole = RowMajor(c.operands[0].dims());
  cuda::Strides from;
  Dims dims;
  for (const int64_t d : IntsAttribute(c.attributes(), "permutation")) {
    from.Add(whole.sizes[d], whole.strides[d]);
    dims.push_back(whole.sizes[d]);
  }
  ASSIGN_OR_RETURN(float* const out, call.NewFloats(0, dims));
  return call.Elements(cuda::CopyStrided{x, from, RowMajor(dims), out},
                       NumElements(dims));
}

absl::Status BroadcastKernel(KernelContext& c) {
  ASSIGN_OR_RETURN(const Dims dims, c.ResultDims(0));
  KernelCall call(c);
  ASSIGN_OR_RETURN(const float* const x, call.Floats(0));
  const cuda::Strides whole = RowMajor(c.operands[0].dims());
  const std::vector<int> added = DimsOf(c);
  cuda::Strides from;
  int of_x = 0;
  for (int d = 0; d < std::ssize(dims); ++d) {
    const bool is_new = std::count(added.begin(), added.end(), d) > 0;
    from.Add(dims[d], is_new ? 0 : whole.strides[of_x++]);
  }
  ASSIGN_OR_RETURN(float* const out, call.NewFloats(0, dims));
  return call.Elements(cuda::CopyStrided{x, from, RowMajor(dims), out},
                       NumElements(dims));
}

absl::Status ConcatKernel(KernelContext& c) {
  KernelCall call(c);
  const int64_t dim = IntAttribute(c.attributes(), "dim");
  Dims dims = c.operands[0].dims();
  dims[dim] = 0;
  for (const Tensor& part : c.operands) dims[dim] += part.dim(dim);
  ASSIGN_OR_RETURN(float* const out, call.NewFloats(0, dims));
  const cuda::Strides whole = RowMajor(dims);
  int64_t begin = 0;
  for (int i = 0; i < std::ssize(c.operands); ++i) {
    ASSIGN_OR_RETURN(const float* const x, call.Floats(i));
    const Tensor& part = c.operands[i];
    RETURN_IF_ERROR(call.Elements(
        cuda::CopyStrided{x, RowMajor(part.dims()), PartOf(whole, part.dims()),
                          out + begin * whole.strides[dim]},
        part.size()));
    begin += part.dim(dim);
  }
  return absl::OkStatus();
}

absl::Status SliceKernel(KernelContext& c) {
  KernelCall call(c);
  ASSIGN_OR_RETURN(const float* const x, call.Floats(0));
  const int64_t dim = IntAttribute(c.attributes(), "dim");
  const int64_t begin = IntAttribute(c.attributes(), "begin");
  const cuda::Strides whole = RowMajor(c.operands[0].dims());
  Dims dims = c.operands[0].dims();
  dims[dim] = IntAttribute(c.attributes(), "end") - begin;
  ASSIGN_OR_RETURN(float* const out, call.NewFloats(0, dims));
  return call.Elements(
      cuda::CopyStrided{x + begin * whole.strides[dim], PartOf(whole, dims),
                        RowMajor(dims), out},
      NumElements(dims));
}

absl::Status SliceGradientKernel(KernelContext& c) {
  KernelCall call(c);
  ASSIGN_OR_RETURN(const float* const dy, call.Floats(0));
  const int64_t dim = IntAttribute(c.attributes(), "dim");
  const Dims part = c.operands[0].dims();
  Dims dims = part;
  dims[dim] = IntAttribute(c.attributes(), "size");
  ASSIGN_OR_RETURN(float* const out, call.NewFloats(0, dims));
  const cuda::Strides whole = RowMajor(dims);
  const int64_t begin = IntAttribute(c.attributes(), "begin");
  RETURN_IF_ERROR(call.Elements(cuda::FillZeros{out}, NumElements(dims)));
  return call.Elements(
      cuda::CopyStrided{dy, RowMajor(part), PartOf(whole, part),
                        out + begin * whole.strides[dim]},
      NumElements(part));
}

template <cuda::ReduceStrided::Op kOp>
absl::Status ReduceKernel(KernelContext& c) {
  KernelCall call(c);
  ASSIGN_OR_RETURN(const float* const x, call.Floats(0));
  const cuda::Strides whole = RowMajor(c.operands[0].dims());
  const std::vector<int> gone = DimsOf(c);
  cuda::Strides kept, reduced;
  Dims dims;
  for (int d = 0; d < whole.rank; ++d) {
    const bool goes = std::count(gone.begin(), gone.end(), d) > 0;
    (goes ? reduced : kept).Add(whole.sizes[d], whole.strides[d]);
    if (!goes) dims.push_back(whole.sizes[d]);
  }
  ASSIGN_OR_RETURN(float* const out, call.NewFloats(0, dims));
  return Reduce(call, kOp, x, kept, reduced, out);
}

}  // namespace

cuda::Strides RowMajor(const Dims& dims) {
  cuda::Strides strides;
  int64_t stride = NumElements(dims);
  for (const int64_t size : dims) {
    stride = size == 0 ? 0 : stride / size;
    strides.Add(size, stride);
  }
  return strides;
}

cuda::Strides PartOf(cuda::Strides whole, const Dims& dims) {
  std::copy(dims.begin(), dims.end(), whole.sizes);
  return whole;
}

absl::Status Reduce(KernelCall& call, cuda::ReduceStrided::Op op,
                    const float* x, cuda::Strides kept, cuda::Strides reduced,
                    float* out) {
  const auto size_of = [](const cuda::Strides& strides) {
    return NumElements(absl::MakeConstSpan(strides.sizes, strides.rank));
  };
  const int64_t outputs = size_of(kept);
  int64_t size = size_of(reduced);
  while (size > cuda::kReduced) {
    const int64_t parts = cuda::BlocksAlong(size, cuda::kReduced);
    ASSIGN_OR_RETURN(float* const some, call.Scratch<float>(parts * outputs));
    RETURN_IF_ERROR(call.Elements(
        cuda::ReduceStrided{op, x, kept, outputs, reduced, size, some},
        parts * outputs));
    x = some;
    size = parts;
    kept = {};
    kept.Add(outputs, 1);
    reduced = {};
    reduced.Add(parts, outputs);
  }
  return call.Elements(
      cuda::ReduceStrided{op, x, kept, outputs, reduced, size, out}, outputs);
}

KernelSet ShapeKernels() {
  using Op = cuda::ReduceStrided::Op;
  // Constants are created on the host; a reshape leaves the elements where they
  // are.
  return {{"broadcast", OfFloats("broadcast", BroadcastKernel)},
          {"concat", OfFloats("concat", ConcatKernel)},
          {"constant", Anywhere("constant")},
          {"reduce_max", OfFloats("reduce_max", ReduceKernel<Op::kMax>)},
          {"reduce_sum", OfFloats("reduce_sum", ReduceKernel<Op::kSum>)},
          {"reshape", Anywhere("reshape")},
          {"slice", OfFloats("slice", SliceKernel)},
          {"slice_gradient", OfFloats("slice_gradient", SliceGradientKernel)},
          {"transpose", OfFloats("transpose", TransposeKernel)}};
}

}  // namespace gshard
