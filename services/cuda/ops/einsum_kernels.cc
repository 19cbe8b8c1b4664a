// The kernel of einsum: one batched matrix product. Operands are transposed
// first where necessary.

#include "services/base/check.h"
#include "services/base/status_macros.h"
#include "services/cuda/ops/kernel_call.h"
#include "services/cuda/ops/kernel_sets.h"
#include "services/cuda/ops/products.h"
#include "services/cuda/ops/row_major.h"
#include "services/ops/einsum.h"

namespace gshard {
namespace {

// The sizes of `letters`.
Dims SizesOf(const KernelContext& c, const EinsumSpec& spec,
             const std::string& letters) {
  Dims dims;
  for (const char letter : letters) {
    const size_t of_a = spec.a.find(letter);
    dims.push_back(of_a != std::string::npos
                       ? c.operands[0].dim(of_a)
                       : c.operands[1].dim(spec.b.find(letter)));
  }
  return dims;
}

// Copies x, whose letters are `from`, to `out` in the order `to`.
template <typename T>
absl::Status Reorder(KernelCall& call, const T* x, const Dims& dims,
                     const std::string& from, const std::string& to, T* out) {
  const cuda::Strides whole = RowMajor(dims);
  cuda::Strides strides;
  Dims ordered;
  for (const char letter : to) {
    const size_t d = from.find(letter);
    CHECK(d < size_t{cuda::kMostDims});
    strides.Add(dims[d], whole.strides[d]);
    ordered.push_back(dims[d]);
  }
  return call.Elements(cuda::CopyStrided<T>{x, strides, RowMajor(ordered), out},
                       NumElements(dims));
}

// The same into scratch memory; returns x itself if the orders are equal.
template <typename T>
absl::StatusOr<const T*> InOrder(KernelCall& call, const T* x, const Dims& dims,
                                 const std::string& from,
                                 const std::string& to) {
  if (from == to) return x;
  ASSIGN_OR_RETURN(T* const out, call.Scratch<T>(NumElements(dims)));
  RETURN_IF_ERROR(Reorder(call, x, dims, from, to, out));
  return out;
}

ProductSizes ProductSizesOf(const KernelContext& c, const EinsumSpec& spec,
                            const EinsumPlan& plan) {
  return {.batch = NumElements(SizesOf(c, spec, plan.batch)),
          .m = NumElements(SizesOf(c, spec, plan.rows)),
          .k = NumElements(SizesOf(c, spec, plan.contracted)),
          .n = NumElements(SizesOf(c, spec, plan.columns))};
}

// Sets the result to what multiply(out) computes, in the order of the spec.
template <typename Function>
absl::Status SetResult(KernelCall& call, const KernelContext& c,
                       const EinsumSpec& spec, const EinsumPlan& plan,
                       const Function& multiply) {
  const Dims dims = SizesOf(c, spec, plan.result());
  ASSIGN_OR_RETURN(float* const result,
                   call.NewFloats(0, SizesOf(c, spec, spec.result)));
  if (plan.result() == spec.result) return multiply(result);
  ASSIGN_OR_RETURN(float* const out, call.Scratch<float>(NumElements(dims)));
  RETURN_IF_ERROR(multiply(out));
  return Reorder(call, out, dims, plan.result(), spec.result, result);
}

template <typename T>
absl::Status Compute(KernelContext& c, const EinsumSpec& spec,
                     EinsumPlan plan) {
  KernelCall call(c);
  const int a = plan.swap ? 1 : 0;
  const std::string letters[] = {spec.a, spec.b};
  // Products exist with either operand transposed, but not with both.
  if (plan.first.transposed && plan.second.transposed) {
    plan.first = {plan.batch + plan.rows + plan.contracted, false};
  }
  const auto operand = [&](int i,
                           const std::string& to) -> absl::StatusOr<const T*> {
    ASSIGN_OR_RETURN(const Tensor* const x, call.Operand(i));
    return InOrder(call, In<T>(*x), x->dims(), letters[i], to);
  };
  ASSIGN_OR_RETURN(const T* const first, operand(a, plan.first.letters));
  ASSIGN_OR_RETURN(const T* const second, operand(1 - a, plan.second.letters));
  const ProductSizes sizes = ProductSizesOf(c, spec, plan);
  return SetResult(call, c, spec, plan, [&](float* out) {
    return plan.first.transposed
               ? MultiplyTransposed(call, sizes, first, second, out)
               : Multiply(call, sizes, first, second, plan.second.transposed,
                          out);
  });
}

// Of weights in panels of int8, which einsums take as MatrixOf() says.
absl::Status ComputeInt8(KernelContext& c, const EinsumSpec& spec,
                         const EinsumPlan& plan) {
  KernelCall call(c);
  ASSIGN_OR_RETURN(const float* const a, call.Floats(0));
  ASSIGN_OR_RETURN(const Tensor* const b, call.Operand(1));
  const ProductSizes sizes = ProductSizesOf(c, spec, plan);
  CHECK(MatrixOf(spec).row_letters > 0 && b->panel_rows() == sizes.k);
  return SetResult(call, c, spec, plan, [&](float* out) {
    return Multiply(call, sizes, a, In<int8_t>(*b), out);
  });
}

absl::Status EinsumKernel(KernelContext& c) {
  ASSIGN_OR_RETURN(const EinsumSpec spec,
                   ParseEinsum(StringAttribute(c.attributes(), "equation")));
  for (const std::string& letters : {spec.a, spec.b, spec.result}) {
    if (letters.size() > cuda::kMostDims) {
      return absl::UnimplementedError(
          "expected tensors of at most 8 dimensions on a GPU");
    }
  }
  if (c.operands[1].type() == ElementType::kInt8) {
    return ComputeInt8(c, spec, PlanEinsum(spec));
  }
  return c.operands[0].type() == ElementType::kBFloat16
             ? Compute<BFloat16>(c, spec, PlanEinsum(spec))
             : Compute<float>(c, spec, PlanEinsum(spec));
}

}  // namespace

KernelSet EinsumKernels() { return {{"einsum", EinsumKernel}}; }

}  // namespace gshard
