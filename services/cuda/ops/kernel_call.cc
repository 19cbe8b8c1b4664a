#include "services/cuda/ops/kernel_call.h"

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/ops/ragged_dot.h"

namespace gshard {
namespace {

CudaRun& RunOf(const KernelContext& c) {
  auto* const run = c.run.Get<DeviceRun>();
  CHECK(run != nullptr);
  return static_cast<CudaRun&>(*run);
}

}  // namespace

KernelCall::KernelCall(KernelContext& c) : c_(c), run_(RunOf(c)) {}

absl::StatusOr<const Tensor*> KernelCall::Operand(int i) {
  ASSIGN_OR_RETURN(c_.operands[i], run_.ToDevice(c_.operands[i]));
  return &c_.operands[i];
}

absl::StatusOr<cuda::FloatsOrRounded> KernelCall::FloatsOrRounded(int i) {
  ASSIGN_OR_RETURN(const Tensor* const x, Operand(i));
  const bool rounded = x->type() == ElementType::kBFloat16;
  return cuda::FloatsOrRounded{.floats = rounded ? nullptr : In<float>(*x),
                               .rounded = rounded ? In<BFloat16>(*x) : nullptr};
}

absl::Status KernelCall::Own(int i) {
  Tensor& x = c_.operands[i];
  if (!x.on_host() && !x.unique()) {
    RETURN_IF_ERROR(Operand(i).status());
    ASSIGN_OR_RETURN(x, run_.Copy(x));
  }
  return Operand(i).status();
}

absl::StatusOr<Tensor> KernelCall::HostOperand(int i) const {
  if (c_.operands[i].on_host()) return c_.operands[i];
  return absl::InvalidArgumentError(
      absl::StrCat("operand ", i, " must be on the host"));
}

absl::StatusOr<std::span<const int32_t>> KernelCall::GroupSizes(int i,
                                                                int64_t rows) {
  ASSIGN_OR_RETURN(const Tensor sizes, HostOperand(i));
  RETURN_IF_ERROR(CheckGroupSizes(sizes, rows));
  return std::span<const int32_t>(sizes.i32(), sizes.size());
}

absl::StatusOr<Tensor*> KernelCall::NewResult(int i, Dims dims) {
  ASSIGN_OR_RETURN(c_.results[i],
                   run_.NewTensor(c_.result_types[i].type, std::move(dims)));
  return &c_.results[i];
}

absl::StatusOr<float*> KernelCall::NewFloats(int i, Dims dims) {
  ASSIGN_OR_RETURN(Tensor* const result, NewResult(i, std::move(dims)));
  CHECK(result->type() == ElementType::kFloat32);
  return Out<float>(*result);
}

absl::StatusOr<Tensor> KernelCall::NewScratch(int64_t bytes) {
  ASSIGN_OR_RETURN(Tensor tensor,
                   run_.NewTensor(ElementType::kInt32, {(bytes + 3) / 4}));
  scratch_.push_back(tensor);
  return tensor;
}

absl::StatusOr<std::vector<Tensor>> KernelCall::ToHost(
    std::vector<Tensor> tensors) {
  bool waits = false;
  for (Tensor& tensor : tensors) {
    waits |= !tensor.on_host();
    ASSIGN_OR_RETURN(tensor, run_.ToHost(tensor));
  }
  if (waits) RETURN_IF_ERROR(run_.Finish());
  return tensors;
}

Kernel OnHost(const char* op) {
  return [kernel = Anywhere(op)](KernelContext& c) -> absl::Status {
    ASSIGN_OR_RETURN(
        std::vector<Tensor> host,
        KernelCall(c).ToHost({c.operands.begin(), c.operands.end()}));
    std::move(host.begin(), host.end(), c.operands.begin());
    return kernel(c);
  };
}

Kernel Anywhere(const char* op) {
  const Kernel* const kernel = FindKernel(op, Backend::kCpu);
  CHECK(kernel != nullptr);
  return *kernel;
}

}  // namespace gshard
