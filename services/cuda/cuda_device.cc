#include "services/cuda/cuda_device.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/collectives/cuda_status.h"
#include "services/cuda/fuse_products.h"

namespace gshard {
namespace {

// Hosts' tensors up to this size go through pinned blocks; larger ones, which
// are parameters, are not worth as much pinned memory.
constexpr size_t kMostPinnedBytes = size_t{64} << 20;

// Oldest that has bf16 products and asynchronous copies to shared memory.
constexpr int kLeastMajor = 8;

#define RETURN_IF_CUDA_ERROR(call) RETURN_IF_ERROR(CudaStatus((call), #call))

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> CudaDevice::Open(int gpu) {
  RETURN_IF_ERROR(Annotate(CheckGpu(gpu), absl::StrCat("device cuda:", gpu)));
  cudaDeviceProp properties;
  RETURN_IF_CUDA_ERROR(cudaGetDeviceProperties(&properties, gpu));
  if (properties.major < kLeastMajor) {
    return absl::FailedPreconditionError(
        absl::StrCat("device cuda:", gpu, ": expected compute capability ",
                     kLeastMajor, ".0 or newer, got ", properties.major, ".",
                     properties.minor, " (", properties.name, ")"));
  }
  std::unique_ptr<CudaDevice> device(
      new CudaDevice(gpu, static_cast<int64_t>(properties.totalGlobalMem)));
  RETURN_IF_ERROR(device->MakeCurrent());
  cudaMemPool_t pool;
  RETURN_IF_CUDA_ERROR(cudaDeviceGetDefaultMemPool(&pool, gpu));
  uint64_t keep = UINT64_MAX;  // bytes that are free and stay in the pool
  RETURN_IF_CUDA_ERROR(
      cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
  LogInfo("computes on a GPU", {{"device", device->name()},
                                {"gpu", std::string(properties.name)},
                                {"memory_bytes", device->memory_bytes()}});
  return device;
}

CudaDevice::~CudaDevice() {
  MutexLock lock(mutex_);
  for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
}

std::string CudaDevice::name() const { return absl::StrCat("cuda:", gpu_); }

Program CudaDevice::Prepare(const Program& program) const {
  return FuseProducts(program);
}

absl::Status CudaDevice::MakeCurrent() const {
  return CudaStatus(cudaSetDevice(gpu_), "cudaSetDevice");
}

absl::StatusOr<std::unique_ptr<DeviceRun>> CudaDevice::BeginRun() {
  RETURN_IF_ERROR(MakeCurrent());
  MutexLock lock(mutex_);
  if (idle_streams_.empty()) {
    cudaStream_t stream;
    RETURN_IF_CUDA_ERROR(
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    streams_.push_back(stream);
    idle_streams_.push_back(stream);
  }
  const cudaStream_t stream = idle_streams_.back();
  idle_streams_.pop_back();
  return std::make_unique<CudaRun>(this, stream);
}

void CudaDevice::ReturnStream(cudaStream_t stream) {
  MutexLock lock(mutex_);
  idle_streams_.push_back(stream);
}

CudaRun::~CudaRun() {
  // Whatever went wrong, nothing is given back that is still in use.
  cudaStreamSynchronize(stream_);
  kept_.clear();
  device_->ReturnStream(stream_);
}

absl::StatusOr<Tensor> CudaRun::NewTensor(ElementType type, Dims dims) {
  const size_t bytes = NumElements(dims) * ElementSize(type);
  void* data = nullptr;
  // An absent tensor has no address: one without elements has.
  RETURN_IF_CUDA_ERROR(cudaMallocAsync(&data, bytes == 0 ? 1 : bytes, stream_));
  own_.insert(static_cast<std::byte*>(data));
  return Tensor::OnDevice(
      type, std::move(dims),
      std::shared_ptr<std::byte>(
          static_cast<std::byte*>(data),
          [device = device_, stream = stream_](std::byte* block) {
            // The thread that frees may have another device, or none.
            if (device->MakeCurrent().ok()) cudaFreeAsync(block, stream);
          }));
}

absl::StatusOr<Tensor> CudaRun::ToDevice(const Tensor& tensor) {
  if (!tensor.on_host()) {
    if (own_.count(tensor.device_data()) == 0) kept_.push_back(tensor);
    return tensor;
  }
  ASSIGN_OR_RETURN(Tensor copy, NewTensor(tensor.type(), tensor.dims()));
  const size_t bytes = tensor.bytes();
  if (bytes == 0) return copy;
  if (bytes > kMostPinnedBytes) {
    // Returns when the host's memory has been read.
    RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(copy.device_data(), tensor.raw(),
                                         bytes, cudaMemcpyHostToDevice,
                                         stream_));
    return copy;
  }
  ASSIGN_OR_RETURN(Tensor pinned,
                   device_->pinned_.New(tensor.type(), tensor.dims()));
  std::memcpy(pinned.raw(), tensor.raw(), bytes);
  RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(copy.device_data(), pinned.raw(), bytes,
                                       cudaMemcpyHostToDevice, stream_));
  kept_.push_back(std::move(pinned));
  return copy;
}

absl::StatusOr<Tensor> CudaRun::ToHost(const Tensor& tensor) {
  if (tensor.on_host()) return tensor;
  ASSIGN_OR_RETURN(Tensor copy,
                   device_->pinned_.New(tensor.type(), tensor.dims()));
  if (tensor.bytes() > 0) {
    RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(copy.raw(), tensor.device_data(),
                                         tensor.bytes(), cudaMemcpyDeviceToHost,
                                         stream_));
  }
  kept_.push_back(tensor);
  // Even if the caller drops it.
  kept_.push_back(copy);
  return copy;
}

absl::Status CudaRun::Finish() {
  const cudaError_t error = cudaStreamSynchronize(stream_);
  kept_.clear();
  return CudaStatus(error, "a kernel or copy");
}

}  // namespace gshard
