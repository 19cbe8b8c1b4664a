// KernelCall: one execution of a node on a GPU.
//
// Floating-point tensors are on the device. Integer tensors (ids, lengths, the
// gate's decisions) are on the host, where they can be checked and where sizes
// and segment calls are derived from them; kernels that need one get a copy.
// The gate's results are small, so all of them stay on the host.

#ifndef SERVICES_CUDA_OPS_KERNEL_CALL_H_
#define SERVICES_CUDA_OPS_KERNEL_CALL_H_

#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/base/status_macros.h"
#include "services/cuda/cuda_device.h"
#include "services/cuda/kernels/launch_dense.h"
#include "services/graph/op.h"

namespace gshard {

class KernelCall {
 public:
  // REQUIRES: the context has a run of a CudaDevice.
  explicit KernelCall(KernelContext& c);

  cudaStream_t stream() const { return run_.stream(); }
  absl::Status Launched(cudaError_t error) { return run_.Launched(error); }

  // Launch a kernel of launch_dense.h.
  template <typename Function>
  absl::Status Elements(const Function& function, int64_t size) {
    return Launched(cuda::LaunchElements(function, size, stream()));
  }
  template <typename Function>
  absl::Status Rows(const Function& function, int64_t rows) {
    return Launched(cuda::LaunchRows(function, rows, stream()));
  }

  // Operand i on the device. A copy replaces the operand in the context, so
  // that the node's later kernels reuse it.
  absl::StatusOr<const Tensor*> Operand(int i);
  // The elements of a float32 or int32 operand.
  absl::StatusOr<const float*> Floats(int i) { return Elements<float>(i); }
  absl::StatusOr<const int32_t*> Ints(int i) { return Elements<int32_t>(i); }
  // The same for an operand of float32 or bfloat16.
  absl::StatusOr<cuda::FloatsOrRounded> FloatsOrRounded(int i);

  // Makes operand i a device tensor that nothing else shares, copying it if
  // necessary, so that it may be overwritten.
  absl::Status Own(int i);

  // Operand i, of integers, for reading on the host. Errors: InvalidArgument if
  // it is not on the host.
  absl::StatusOr<Tensor> HostOperand(int i) const;
  absl::Status CheckOnHost(int i) const { return HostOperand(i).status(); }

  // The group sizes in operand `i`. Errors: those of CheckGroupSizes for `rows`
  // rows.
  absl::StatusOr<std::span<const int32_t>> GroupSizes(int i, int64_t rows);

  // Allocates result `i` with the element type that the program gives it.
  absl::StatusOr<Tensor*> NewResult(int i, Dims dims);
  // The same for a float32 result; returns its elements.
  absl::StatusOr<float*> NewFloats(int i, Dims dims);

  // A device tensor that is not a result.
  absl::StatusOr<Tensor> NewTensor(ElementType type, Dims dims) {
    return run_.NewTensor(type, std::move(dims));
  }

  // Uninitialised device memory that lives as long as this call.
  template <typename T>
  absl::StatusOr<T*> Scratch(int64_t size) {
    ASSIGN_OR_RETURN(Tensor tensor,
                     NewScratch(size * static_cast<int64_t>(sizeof(T))));
    return Out<T>(tensor);
  }
  // The same, holding a copy of `values`.
  template <typename T>
  absl::StatusOr<const T*> Upload(std::span<const T> values) {
    ASSIGN_OR_RETURN(const Tensor copy, run_.Upload(values));
    scratch_.push_back(copy);
    return In<T>(copy);
  }
  template <typename T>
  absl::StatusOr<const T*> Upload(const std::vector<T>& values) {
    return Upload(std::span<const T>(values));
  }

  // Copies of `tensors` on the host. If one of them is on the device, this
  // waits for everything queued in the stream.
  absl::StatusOr<std::vector<Tensor>> ToHost(std::vector<Tensor> tensors);

 private:
  template <typename T>
  absl::StatusOr<const T*> Elements(int i) {
    ASSIGN_OR_RETURN(const Tensor* const operand, Operand(i));
    CHECK(operand->type() == ElementTypeOf<T>::value);
    return In<T>(*operand);
  }
  absl::StatusOr<Tensor> NewScratch(int64_t bytes);

  KernelContext& c_;
  CudaRun& run_;
  // Memory is freed in stream order, so after the kernels that use it.
  std::vector<Tensor> scratch_;
};

// The CPU kernel of `op`, run on the host; mainly for integers. Operands on the
// device are copied first, which waits for them.
Kernel OnHost(const char* op);
// The CPU kernel of an `op` that does not read elements; operands stay where
// they are.
Kernel Anywhere(const char* op);

}  // namespace gshard

#endif  // SERVICES_CUDA_OPS_KERNEL_CALL_H_
