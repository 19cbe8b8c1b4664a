// CudaDevice: a GPU.
//
// Each run has a CUDA stream of its own, so that the copies of one hide behind
// the kernels of another. Memory comes from CUDA's pool of the device, in the
// order of the stream of the run that asks for it; what is freed stays in the
// pool. What crosses between host and device passes through pinned blocks.
//
// For .cc files of this room only: it includes CUDA's headers.

#ifndef SERVICES_CUDA_CUDA_DEVICE_H_
#define SERVICES_CUDA_CUDA_DEVICE_H_

#include <cuda_runtime_api.h>

#include <initializer_list>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/base/mutex.h"
#include "services/cuda/kernels/row_sums.h"
#include "services/cuda/pinned_blocks.h"
#include "services/graph/device.h"

namespace gshard {

class CudaRun;

class CudaDevice final : public Device {
 public:
  // Errors: FailedPrecondition if there is no usable GPU of this number.
  static absl::StatusOr<std::unique_ptr<Device>> Open(int gpu);
  ~CudaDevice() override;

  Backend backend() const override { return Backend::kCuda; }
  std::string name() const override;
  int64_t memory_bytes() const override { return memory_bytes_; }
  absl::Status status() const override;
  Program Prepare(const Program& program) const override;
  absl::StatusOr<std::unique_ptr<DeviceRun>> BeginRun() override;

 private:
  friend class CudaRun;
  CudaDevice(int gpu, int64_t memory_bytes)
      : gpu_(gpu), memory_bytes_(memory_bytes), pinned_(gpu) {}

  // CudaStatus; or status(), of which it may be the reason. To be asked after
  // every call.
  absl::Status Check(cudaError_t error, const char* call);
  void Free(void* block, cudaStream_t stream) const;
  void ReturnStream(cudaStream_t stream);

  const int gpu_;
  const int64_t memory_bytes_;
  PinnedBlocks pinned_;
  mutable Mutex mutex_;
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);  // status()
  // None is destroyed before the device: tensors are freed in their order.
  std::vector<cudaStream_t> streams_ ABSL_GUARDED_BY(mutex_);
  std::vector<cudaStream_t> idle_streams_ ABSL_GUARDED_BY(mutex_);
};

class CudaRun final : public DeviceRun {
 public:
  // Of a device that outlives it, with a stream that no other run has.
  CudaRun(CudaDevice* device, cudaStream_t stream)
      : device_(device), stream_(stream) {}
  ~CudaRun() override;

  absl::StatusOr<Tensor> ToDevice(const Tensor& tensor) override;
  absl::StatusOr<Tensor> ToHost(const Tensor& tensor) override;
  absl::Status Finish() override;
  absl::StatusOr<Tensor> NewTensor(ElementType type, Dims dims) override;

  // In decoding_steps.cc.
  absl::Status CopyRanges(const Tensor& from,
                          absl::Span<const ElementRange> ranges,
                          Tensor& to) override;
  absl::StatusOr<std::vector<std::vector<TokenScore>>> TopTokensOfRows(
      const Tensor& logits, absl::Span<const TokensWanted> wanted) override;

  // In optimizer_steps.cc.
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

  cudaStream_t stream() const { return stream_; }
  // CudaDevice::Check, of what a kernel's launch returned.
  absl::Status Launched(cudaError_t error);

 private:
  // Keeps what kernels of this run use. REQUIRES: float32 on the device.
  void Use(std::initializer_list<const Tensor*> tensors);
  // A copy of plain data, of a multiple of 4 bytes an item.
  template <typename T>
  absl::StatusOr<Tensor> Upload(const std::vector<T>& items);
  template <typename Function>
  absl::Status Elements(const Function& function, int64_t size);
  // Sums of RowSums.
  template <typename Function>
  absl::StatusOr<Tensor> SquaresOfRows(const cuda::RowsOfParts& rows,
                                       const Function& square);

  CudaDevice* const device_;
  const cudaStream_t stream_;
  // Addresses of what was made in this run and is freed in its order. All else
  // that the stream uses, the host's memory too, is kept until it is done.
  std::unordered_set<const std::byte*> own_;
  std::vector<Tensor> kept_;
};

}  // namespace gshard

#endif  // SERVICES_CUDA_CUDA_DEVICE_H_
