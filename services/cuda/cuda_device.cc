#include "services/cuda/cuda_device.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/collectives/cuda_status.h"
#include "services/cuda/fuse_products.h"
#include "services/cuda/kernels/launch.h"

namespace gshard {
namespace {

// Copies of tensors up to this size go through pinned blocks. For larger ones
// the speed-up is not worth the pinned memory.
constexpr size_t kMostPinnedBytes = size_t{64} << 20;

// The oldest compute capability (major version) with bf16 tensor cores and
// asynchronous copies to shared memory.
constexpr int kLeastMajor = 8;

// Opens the pool to the GPUs that can read and write it: between those of one
// process NCCL does so directly, and a pool is closed to them otherwise.
absl::Status OpenToPeers(cudaMemPool_t pool, int gpu) {
  int gpus = 0;
  RETURN_IF_ERROR(CudaStatus(cudaGetDeviceCount(&gpus), "cudaGetDeviceCount"));
  for (int peer = 0; peer < gpus; ++peer) {
    int can = 0;
    if (peer == gpu) continue;
    RETURN_IF_ERROR(CudaStatus(cudaDeviceCanAccessPeer(&can, peer, gpu),
                               "cudaDeviceCanAccessPeer"));
    if (can == 0) continue;
    cudaMemAccessDesc access = {};
    access.location.type = cudaMemLocationTypeDevice;
    access.location.id = peer;
    access.flags = cudaMemAccessFlagsProtReadWrite;
    RETURN_IF_ERROR(CudaStatus(cudaMemPoolSetAccess(pool, &access, 1),
                               "cudaMemPoolSetAccess"));
  }
  return absl::OkStatus();
}

}  // namespace

#define RETURN_IF_CUDA_ERROR(device, call) \
  RETURN_IF_ERROR((device)->Check((call), #call))

absl::StatusOr<std::unique_ptr<Device>> CudaDevice::Open(int gpu) {
  RETURN_IF_ERROR(Annotate(CheckGpu(gpu), absl::StrCat("device cuda:", gpu)));
  cudaDeviceProp properties;
  RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, gpu),
                             "cudaGetDeviceProperties"));
  if (properties.major < kLeastMajor) {
    return absl::FailedPreconditionError(
        absl::StrCat("device cuda:", gpu, ": expected compute capability ",
                     kLeastMajor, ".0 or newer, got ", properties.major, ".",
                     properties.minor, " (", properties.name, ")"));
  }
  RETURN_IF_ERROR(CudaStatus(cudaSetDevice(gpu), "cudaSetDevice"));
  // On a GPU newer than the kernels' machine code, the driver compiles their
  // PTX; this fails if the driver is older than the toolkit.
  const cudaError_t found = cuda::CheckKernels();
  if (found != cudaSuccess) {
    return absl::FailedPreconditionError(absl::StrCat(
        "device cuda:", gpu, ": the kernels do not run on a ", properties.name,
        " with this driver: ", cudaGetErrorString(found)));
  }
  size_t free = 0, total = 0;
  RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free, &total), "cudaMemGetInfo"));
  std::unique_ptr<CudaDevice> device(
      new CudaDevice(gpu, static_cast<int64_t>(free)));
  cudaMemPool_t pool;
  RETURN_IF_CUDA_ERROR(device, cudaDeviceGetDefaultMemPool(&pool, gpu));
  uint64_t keep = UINT64_MAX;  // never release free memory to the OS
  RETURN_IF_CUDA_ERROR(
      device,
      cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
  RETURN_IF_ERROR(OpenToPeers(pool, gpu));
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

absl::Status CudaDevice::status() const {
  MutexLock lock(mutex_);
  return lost_;
}

void CudaDevice::Free(void* block, cudaStream_t stream) const {
  // The calling thread may have another current device, or none. Errors are
  // dropped: they stem from earlier work, and the thread's next checked call
  // reports them too.
  cudaSetDevice(gpu_);
  cudaFreeAsync(block, stream);
  cudaGetLastError();
}

absl::Status CudaDevice::Check(cudaError_t error, const char* call) {
  return OrLost(CudaStatus(error, call));
}

absl::Status CudaDevice::OrLost(const absl::Status& status) {
  if (status.ok()) return status;
  // A fault in a kernel is sticky: every later call returns its error. Such an
  // error shows in cudaStreamQuery and means that the device is lost.
  const cudaError_t stays = cudaStreamQuery(nullptr);
  cudaGetLastError();
  if (stays == cudaSuccess || stays == cudaErrorNotReady) return status;
  MutexLock lock(mutex_);
  if (lost_.ok()) {
    lost_ = absl::UnavailableError(absl::StrCat(
        "device ", name(),
        " is lost until the process is started anew: ", status.message()));
    LogError("a GPU is lost", {{"status", lost_}});
  }
  return lost_;
}

absl::StatusOr<Tensor> CudaDevice::NewPinned(ElementType type, Dims dims) {
  absl::StatusOr<Tensor> tensor = pinned_.New(type, std::move(dims));
  if (!tensor.ok()) return OrLost(tensor.status());
  return tensor;
}

absl::StatusOr<std::unique_ptr<DeviceRun>> CudaDevice::BeginRun() {
  RETURN_IF_ERROR(status());
  RETURN_IF_CUDA_ERROR(this, cudaSetDevice(gpu_));
  cudaStream_t stream = nullptr;
  {
    MutexLock lock(mutex_);
    if (!idle_streams_.empty()) {
      stream = idle_streams_.back();
      idle_streams_.pop_back();
    }
  }
  if (stream == nullptr) {
    RETURN_IF_CUDA_ERROR(
        this, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    MutexLock lock(mutex_);
    streams_.push_back(stream);
  }
  return std::make_unique<CudaRun>(this, stream);
}

void CudaDevice::ReturnStream(cudaStream_t stream) {
  MutexLock lock(mutex_);
  idle_streams_.push_back(stream);
}

CudaRun::~CudaRun() {
  // Even after an error, wait: memory that the stream uses must not be freed. A
  // fault that shows only now is in the device's status.
  Finish().IgnoreError();
  device_->ReturnStream(stream_);
}

absl::StatusOr<std::shared_ptr<std::byte>> CudaRun::Allocate(size_t bytes) {
  void* data = nullptr;
  // Allocate at least one byte, so that a tensor without elements has an
  // address; without an address it would be an absent tensor.
  RETURN_IF_CUDA_ERROR(device_,
                       cudaMallocAsync(&data, bytes == 0 ? 1 : bytes, stream_));
  own_.insert(static_cast<std::byte*>(data));
  return std::shared_ptr<std::byte>(
      static_cast<std::byte*>(data),
      [device = device_, stream = stream_](std::byte* block) {
        device->Free(block, stream);
      });
}

absl::StatusOr<Tensor> CudaRun::NewTensor(ElementType type, Dims dims) {
  ASSIGN_OR_RETURN(std::shared_ptr<std::byte> block,
                   Allocate(NumElements(dims) * ElementSize(type)));
  return Tensor::OnDevice(type, std::move(dims), std::move(block));
}

absl::StatusOr<Tensor> CudaRun::ToDevice(const Tensor& tensor) {
  if (!tensor.on_host()) {
    if (own_.count(tensor.device_data()) == 0) kept_.push_back(tensor);
    return tensor;
  }
  const size_t bytes = tensor.bytes();
  ASSIGN_OR_RETURN(std::shared_ptr<std::byte> block, Allocate(bytes));
  Tensor copy = tensor.WithData(std::move(block), /*on_device=*/true);
  if (bytes == 0) return copy;
  // The stream may read unpinned memory at any time until the run finishes, so
  // `from` is kept; smaller tensors are staged in a pinned block.
  Tensor from = tensor;
  if (bytes <= kMostPinnedBytes) {
    ASSIGN_OR_RETURN(from, device_->NewPinned(ElementType::kUint8,
                                              {static_cast<int64_t>(bytes)}));
    std::memcpy(from.raw(), tensor.buffer(), bytes);
  }
  RETURN_IF_CUDA_ERROR(device_,
                       cudaMemcpyAsync(copy.device_data(), from.buffer(), bytes,
                                       cudaMemcpyHostToDevice, stream_));
  kept_.push_back(std::move(from));
  return copy;
}

absl::StatusOr<Tensor> CudaRun::ToHost(const Tensor& tensor) {
  if (tensor.on_host()) return tensor;
  CHECK(tensor.panel_rows() == 0);  // weights, which nobody reads back
  ASSIGN_OR_RETURN(Tensor copy,
                   tensor.bytes() <= kMostPinnedBytes
                       ? device_->NewPinned(tensor.type(), tensor.dims())
                       : AllocateTensor(tensor.type(), tensor.dims()));
  if (tensor.bytes() > 0) {
    RETURN_IF_CUDA_ERROR(
        device_,
        cudaMemcpyAsync(copy.raw(), tensor.device_data(), tensor.bytes(),
                        cudaMemcpyDeviceToHost, stream_));
  }
  kept_.push_back(tensor);
  // The copy must live until it is complete, even if the caller drops it.
  kept_.push_back(copy);
  return copy;
}

absl::Status CudaRun::Finish() {
  const cudaError_t error = cudaStreamSynchronize(stream_);
  kept_.clear();
  return device_->Check(error, "a kernel or copy");
}

absl::Status CudaRun::Launched(cudaError_t error) {
  return device_->Check(error, "the launch of a kernel");
}

}  // namespace gshard
