// CudaDevice: one GPU.
//
// Each run has its own CUDA stream, so that the copies of one run overlap with
// the kernels of another. Device memory comes from the GPU's default CUDA
// memory pool, allocated in the stream order of the run that requests it; freed
// memory stays in the pool. Copies between host and device go through pinned
// blocks.
//
// For the .cc files of this directory only: it includes CUDA's headers.

#ifndef SERVICES_CUDA_CUDA_DEVICE_H_
#define SERVICES_CUDA_CUDA_DEVICE_H_

#include <cuda_runtime_api.h>

#include <cstring>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/base/mutex.h"
#include "services/base/status_macros.h"
#include "services/cuda/kernels/row_sums.h"
#include "services/cuda/pinned_blocks.h"
#include "services/graph/device.h"

namespace gshard {

class CudaRun;

class CudaDevice final : public Device {
 public:
  // Errors: FailedPrecondition if there is no usable GPU with this number.
  static absl::StatusOr<std::unique_ptr<Device>> Open(int gpu);
  ~CudaDevice() override;

  Backend backend() const override { return Backend::kCuda; }
  std::string name() const override;
  int gpu() const override { return gpu_; }
  int64_t memory_bytes() const override { return memory_bytes_; }
  absl::Status status() const override;
  Program Prepare(const Program& program) const override;
  absl::StatusOr<std::unique_ptr<DeviceRun>> BeginRun() override;

 private:
  friend class CudaRun;
  CudaDevice(int gpu, int64_t memory_bytes)
      : gpu_(gpu), memory_bytes_(memory_bytes), pinned_(gpu) {}

  // CudaStatus(error, call), or status() if the device is lost. `error` may be
  // what reveals the loss, so call this after every CUDA call.
  absl::Status Check(cudaError_t error, const char* call);
  // The same for what a CUDA call has already been made into.
  absl::Status OrLost(const absl::Status& status);
  // PinnedBlocks::New(). Errors: those of status(), too.
  absl::StatusOr<Tensor> NewPinned(ElementType type, Dims dims);
  void Free(void* block, cudaStream_t stream) const;
  void ReturnStream(cudaStream_t stream);

  const int gpu_;
  const int64_t memory_bytes_;
  PinnedBlocks pinned_;
  mutable Mutex mutex_;
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);  // status()
  // Streams live as long as the device, because tensors are freed in their
  // stream's order.
  std::vector<cudaStream_t> streams_ ABSL_GUARDED_BY(mutex_);
  std::vector<cudaStream_t> idle_streams_ ABSL_GUARDED_BY(mutex_);
};

// The elements of a device tensor.
template <typename T = float>
const T* In(const Tensor& tensor) {
  return reinterpret_cast<const T*>(tensor.device_data());
}
template <typename T = float>
T* Out(Tensor& tensor) {
  return reinterpret_cast<T*>(tensor.device_data());
}

class CudaRun final : public DeviceRun {
 public:
  // `device` outlives the run; no other run uses `stream`.
  CudaRun(CudaDevice* device, cudaStream_t stream)
      : device_(device), stream_(stream) {}
  ~CudaRun() override;

  absl::StatusOr<Tensor> ToDevice(const Tensor& tensor) override;
  absl::StatusOr<Tensor> ToHost(const Tensor& tensor) override;
  absl::Status Finish() override;
  absl::StatusOr<Tensor> NewTensor(ElementType type, Dims dims) override;

  // Defined in decoding_steps.cc.
  absl::Status CopyRanges(const Tensor& from,
                          absl::Span<const ElementRange> ranges,
                          Tensor& to) override;
  absl::StatusOr<std::vector<std::vector<TokenScore>>> TopTokensOfRows(
      const Tensor& logits, absl::Span<const TokensWanted> wanted) override;

  // Defined in optimizer_steps.cc.
  absl::StatusOr<Tensor> Copy(const Tensor& x) override;
  absl::StatusOr<Tensor> RoundToBf16(const Tensor& x) override;
  absl::Status Add(const Tensor& x, Tensor& sum) override;
  absl::StatusOr<std::vector<double>> SumsOfSquares(const Tensor& x,
                                                    int64_t parts) override;
  absl::Status Update(const AdamStep& step, const Tensor& gradient,
                      Tensor& weight, Tensor& first, Tensor& second) override;
  absl::Status Update(const AdafactorStep& step, int64_t parts,
                      absl::Span<const int64_t> dims, const Tensor& gradient,
                      Tensor& weight, absl::Span<Tensor> state) override;

  // Copies `items`, plain data of a multiple of 4 bytes each, to the device.
  template <typename T>
  absl::StatusOr<Tensor> Upload(std::span<const T> items) {
    static_assert(sizeof(T) % sizeof(int32_t) == 0);
    ASSIGN_OR_RETURN(Tensor host,
                     AllocateTensor(ElementType::kInt32,
                                    {static_cast<int64_t>(items.size_bytes() /
                                                          sizeof(int32_t))}));
    if (!items.empty()) std::memcpy(host.raw(), items.data(), host.bytes());
    return ToDevice(host);
  }
  template <typename T>
  absl::StatusOr<Tensor> Upload(const std::vector<T>& items) {
    return Upload(std::span<const T>(items));
  }

  cudaStream_t stream() const { return stream_; }
  // CudaDevice::Check for the result of a kernel launch.
  absl::Status Launched(cudaError_t error);

 private:
  // Keeps `tensors` alive while kernels of this run use them. REQUIRES:
  // float32, on the device.
  void Use(std::initializer_list<const Tensor*> tensors);
  template <typename Function>
  absl::Status Elements(const Function& function, int64_t size);
  // Sums of squares per row, as computed by RowSums (row_sums.h).
  template <typename Function>
  absl::StatusOr<Tensor> SquaresOfRows(const cuda::RowsOfParts& rows,
                                       const Function& square);

  absl::StatusOr<std::shared_ptr<std::byte>> Allocate(size_t bytes);

  CudaDevice* const device_;
  const cudaStream_t stream_;
  // Addresses of the tensors allocated in this run; they are freed in the order
  // of its stream. Every other tensor that the stream uses, host memory
  // included, stays in kept_ until the stream has finished with it.
  std::unordered_set<const std::byte*> own_;
  std::vector<Tensor> kept_;
};

}  // namespace gshard

#endif  // SERVICES_CUDA_CUDA_DEVICE_H_
