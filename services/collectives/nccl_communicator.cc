#include "services/collectives/nccl_communicator.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/collectives/cuda_status.h"
#include "services/collectives/exchange_check.h"

namespace gshard {
namespace {

using Clock = std::chrono::steady_clock;

// Polling interval for the end of an exchange. Blocking calls would not return
// if a member dies.
constexpr std::chrono::microseconds kPollInterval(20);

absl::Status NcclStatus(ncclResult_t result, const char* call,
                        ncclComm_t comm) {
  if (result == ncclSuccess || result == ncclInProgress) {
    return absl::OkStatus();
  }
  const std::string message = absl::StrCat(
      call, ": ", ncclGetErrorString(result), ": ", ncclGetLastError(comm));
  if (result == ncclRemoteError || result == ncclSystemError) {
    return absl::UnavailableError(message);
  }
  if (result == ncclInvalidArgument || result == ncclInvalidUsage) {
    return absl::InvalidArgumentError(message);
  }
  return absl::InternalError(message);
}

}  // namespace

class NcclCommunicator::Gpu {
 public:
  explicit Gpu(const NcclOptions& options) : options_(options) {}

  ~Gpu() {
    cudaSetDevice(options_.gpu);
    // Not ncclCommDestroy, which waits for members that may be gone. Nothing is
    // in flight between exchanges.
    if (comm_ != nullptr) ncclCommAbort(comm_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  absl::Status Connect(const ncclUniqueId& id, int rank, int size) {
    RETURN_IF_ERROR(CudaStatus(cudaSetDevice(options_.gpu), "cudaSetDevice"));
    RETURN_IF_ERROR(
        CudaStatus(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
                   "cudaStreamCreateWithFlags"));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const Clock::time_point deadline = Clock::now() + options_.timeout;
    RETURN_IF_ERROR(
        NcclStatus(ncclCommInitRankConfig(&comm_, size, id, rank, &config),
                   "ncclCommInitRankConfig", comm_));
    return AwaitNccl("ncclCommInitRankConfig", deadline);
  }

  absl::Status Exchange(int rank, absl::Span<const SendBytes> send,
                        absl::Span<const ReceiveBytes> receive) {
    const int n = static_cast<int>(send.size());
    const Clock::time_point deadline = Clock::now() + options_.timeout;
    RETURN_IF_ERROR(CudaStatus(cudaSetDevice(options_.gpu), "cudaSetDevice"));
    const ReceiveBytes& own = receive[rank];
    if (own.size > 0 && own.data != send[rank].data) {
      RETURN_IF_ERROR(
          CudaStatus(cudaMemcpyAsync(own.data, send[rank].data, own.size,
                                     cudaMemcpyDeviceToDevice, stream_),
                     "cudaMemcpyAsync"));
    }

    RETURN_IF_ERROR(NcclStatus(ncclGroupStart(), "ncclGroupStart", comm_));
    absl::Status queued;
    for (int r = 0; r < n && queued.ok(); ++r) {
      if (r == rank) continue;
      if (send[r].size > 0) {
        queued = NcclStatus(
            ncclSend(send[r].data, send[r].size, ncclUint8, r, comm_, stream_),
            "ncclSend", comm_);
      }
      if (queued.ok() && receive[r].size > 0) {
        queued = NcclStatus(ncclRecv(receive[r].data, receive[r].size,
                                     ncclUint8, r, comm_, stream_),
                            "ncclRecv", comm_);
      }
    }
    // The NCCL group must be ended in any case.
    const absl::Status ended =
        NcclStatus(ncclGroupEnd(), "ncclGroupEnd", comm_);
    RETURN_IF_ERROR(queued);
    RETURN_IF_ERROR(ended);
    RETURN_IF_ERROR(AwaitNccl("ncclGroupEnd", deadline));
    return AwaitStream(deadline);
  }

  // Aborts operations in flight, so that the other members see an error, and
  // waits for their end, after which the caller may free its buffers.
  void Abort() {
    cudaSetDevice(options_.gpu);
    if (comm_ != nullptr) ncclCommAbort(comm_);
    comm_ = nullptr;
    if (stream_ != nullptr) cudaStreamSynchronize(stream_);
  }

 private:
  absl::Status CheckDeadline(const char* what, Clock::time_point deadline) {
    if (options_.cancelled != nullptr && *options_.cancelled) {
      return absl::CancelledError(
          absl::StrCat(what, ": the group was aborted"));
    }
    if (Clock::now() < deadline) return absl::OkStatus();
    return absl::DeadlineExceededError(absl::StrCat(
        what, ": not done after ", options_.timeout.count(), " ms"));
  }

  // Waits until NCCL's last, non-blocking call has completed.
  absl::Status AwaitNccl(const char* call, Clock::time_point deadline) {
    for (;;) {
      ncclResult_t state = ncclSuccess;
      RETURN_IF_ERROR(NcclStatus(ncclCommGetAsyncError(comm_, &state),
                                 "ncclCommGetAsyncError", comm_));
      if (state != ncclInProgress) return NcclStatus(state, call, comm_);
      RETURN_IF_ERROR(CheckDeadline(call, deadline));
      std::this_thread::sleep_for(kPollInterval);
    }
  }

  absl::Status AwaitStream(Clock::time_point deadline) {
    for (;;) {
      const cudaError_t state = cudaStreamQuery(stream_);
      if (state != cudaErrorNotReady) {
        return CudaStatus(state, "cudaStreamQuery");
      }
      cudaGetLastError();  // else this thread's next kernel reports it
      ncclResult_t error = ncclSuccess;
      RETURN_IF_ERROR(NcclStatus(ncclCommGetAsyncError(comm_, &error),
                                 "ncclCommGetAsyncError", comm_));
      RETURN_IF_ERROR(NcclStatus(error, "exchange", comm_));
      RETURN_IF_ERROR(CheckDeadline("exchange", deadline));
      std::this_thread::sleep_for(kPollInterval);
    }
  }

  const NcclOptions options_;
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

absl::StatusOr<std::string> NewNcclId() {
  RETURN_IF_ERROR(CheckGpu(0));
  ncclUniqueId id;
  RETURN_IF_ERROR(NcclStatus(ncclGetUniqueId(&id), "ncclGetUniqueId", nullptr));
  return std::string(id.internal, sizeof(id.internal));
}

absl::StatusOr<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Create(
    absl::string_view id, int rank, int size, const NcclOptions& options) {
  if (size < 1 || rank < 0 || rank >= size) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a rank below the number of members, got rank ",
                     rank, " of ", size));
  }
  ncclUniqueId unique;
  if (id.size() != sizeof(unique.internal)) {
    return absl::InvalidArgumentError(absl::StrCat("expected an id of ",
                                                   sizeof(unique.internal),
                                                   " bytes, got ", id.size()));
  }
  if (options.timeout <= std::chrono::milliseconds::zero()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected a positive timeout, got ", options.timeout.count(), " ms"));
  }
  RETURN_IF_ERROR(CheckGpu(options.gpu));
  std::memcpy(unique.internal, id.data(), id.size());
  auto gpu = std::make_unique<Gpu>(options);
  RETURN_IF_ERROR(gpu->Connect(unique, rank, size));
  return std::unique_ptr<NcclCommunicator>(
      new NcclCommunicator(rank, size, std::move(gpu)));
}

NcclCommunicator::NcclCommunicator(int rank, int size, std::unique_ptr<Gpu> gpu)
    : rank_(rank), size_(size), gpu_(std::move(gpu)) {}

NcclCommunicator::~NcclCommunicator() = default;

absl::Status NcclCommunicator::Exchange(
    absl::Span<const SendBytes> send, absl::Span<const ReceiveBytes> receive) {
  RETURN_IF_ERROR(CheckExchange(rank_, size_, send, receive));
  RETURN_IF_ERROR(broken_);
  broken_ = gpu_->Exchange(rank_, send, receive);
  if (!broken_.ok()) gpu_->Abort();
  return broken_;
}

}  // namespace gshard
