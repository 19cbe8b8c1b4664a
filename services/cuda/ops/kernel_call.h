// KernelCall: one execution of a node on a GPU.
//
// Numbers that are computed with are on the device, integers on the host: ids,
// lengths, and what the gate decides. There they can be checked, sizes and
// segments' calls depend on some, and a kernel gets a copy. Results of the gate
// are few enough that all of them stay on the host.

#ifndef SERVICES_CUDA_OPS_KERNEL_CALL_H_
#define SERVICES_CUDA_OPS_KERNEL_CALL_H_

#include <cstring>
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

// The elements of a tensor on the device.
template <typename T>
const T* In(const Tensor* tensor) {
  return reinterpret_cast<const T*>(tensor->device_data());
}
template <typename T>
T* Out(Tensor* tensor) {
  return reinterpret_cast<T*>(tensor->device_data());
}

class KernelCall {
 public:
  // REQUIRES: the context has a run of a CudaDevice.
  explicit KernelCall(KernelContext& c);

  cudaStream_t stream() const { return run_.stream(); }
  absl::Status Launched(cudaError_t error) { return run_.Launched(error); }

  // Kernels of launch_dense.h.
  template <typename Function>
  absl::Status Elements(const Function& function, int64_t size) {
    return Launched(cuda::LaunchElements(function, size, stream()));
  }
  template <typename Function>
  absl::Status Rows(const Function& function, int64_t rows) {
    return Launched(cuda::LaunchRows(function, rows, stream()));
  }

  // An operand on the device. Keeps it there for the next kernel that asks.
  absl::StatusOr<const Tensor*> Operand(int i);
  // The elements of one of float32, or of int32.
  absl::StatusOr<const float*> Floats(int i) { return Elements<float>(i); }
  absl::StatusOr<const int32_t*> Ints(int i) { return Elements<int32_t>(i); }
  // Of one of float32 or bfloat16.
  absl::StatusOr<cuda::FloatsOrRounded> FloatsOrRounded(int i);

  // Has an operand on the device that nobody else holds: it may be overwritten.
  absl::Status Own(int i);

  // Operand i, of integers, where they can be looked at. Errors:
  // InvalidArgument for one that is not on the host.
  absl::StatusOr<Tensor> HostOperand(int i) const;
  absl::Status CheckOnHost(int i) const { return HostOperand(i).status(); }

  // The group sizes that are operand `i`, which part `rows` rows.
  absl::StatusOr<std::span<const int32_t>> GroupSizes(int i, int64_t rows);

  // Result `i`, of the type of the program.
  absl::StatusOr<Tensor*> NewResult(int i, Dims dims);
  // The elements of one of float32.
  absl::StatusOr<float*> NewFloats(int i, Dims dims);

  // A tensor of the device that is no result.
  absl::StatusOr<Tensor> NewTensor(ElementType type, Dims dims) {
    return run_.NewTensor(type, std::move(dims));
  }

  // Memory of the device for this call.
  template <typename T>
  absl::StatusOr<T*> Scratch(int64_t size) {
    ASSIGN_OR_RETURN(Tensor tensor,
                     NewScratch(size * static_cast<int64_t>(sizeof(T))));
    return Out<T>(&tensor);
  }
  // The same with a copy of `values`.
  template <typename T>
  absl::StatusOr<const T*> Upload(std::span<const T> values) {
    static_assert(sizeof(T) % sizeof(int32_t) == 0);
    Tensor host(ElementType::kInt32,
                {static_cast<int64_t>(values.size_bytes() / 4)});
    if (!values.empty()) {
      std::memcpy(host.raw(), values.data(), host.bytes());
    }
    ASSIGN_OR_RETURN(const Tensor copy, ToDevice(host));
    return In<T>(&copy);
  }
  template <typename T>
  absl::StatusOr<const T*> Upload(const std::vector<T>& values) {
    return Upload(std::span<const T>(values));
  }

  // Copies of tensors on the host, complete: waits for all that is queued.
  absl::StatusOr<std::vector<Tensor>> ToHost(std::vector<Tensor> tensors);

 private:
  template <typename T>
  absl::StatusOr<const T*> Elements(int i) {
    ASSIGN_OR_RETURN(const Tensor* const operand, Operand(i));
    CHECK(operand->type() == ElementTypeOf<T>::value);
    return In<T>(operand);
  }
  absl::StatusOr<Tensor> ToDevice(const Tensor& host);
  absl::StatusOr<Tensor> NewScratch(int64_t bytes);

  KernelContext& c_;
  CudaRun& run_;
  // Freed in the stream's order, after the kernel.
  std::vector<Tensor> scratch_;
};

// The CPU's kernel of `op`, on the host, for integers above all. Operands that
// are on the device are copied, which waits for them.
Kernel OnHost(const char* op);
// The same of one that does not look at elements: operands stay where they are.
Kernel Anywhere(const char* op);

}  // namespace gshard

#endif  // SERVICES_CUDA_OPS_KERNEL_CALL_H_
