// NcclCommunicator: an exchange between the memories of GPUs by NVIDIA's NCCL:
// over NVLink, PCIe or the network. The members are processes or threads with a
// GPU each.
//
// Built only if CMake finds CUDA and NCCL; the header depends on neither.

#ifndef SERVICES_COLLECTIVES_NCCL_COMMUNICATOR_H_
#define SERVICES_COLLECTIVES_NCCL_COMMUNICATOR_H_

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "services/collectives/communicator.h"

namespace gshard {

struct NcclOptions {
  // CUDA index of this member's GPU, distinct within a group.
  int gpu = 0;
  // Timeout for forming a group, and for each exchange.
  std::chrono::milliseconds timeout = std::chrono::seconds(30);
  // Once set, both end with Cancelled; may be null. Must outlive the group.
  const std::atomic<bool>* cancelled = nullptr;
};

// The id of a new group: created by one member, passed to all.
//
// Errors: FailedPrecondition if there is no GPU, Internal if NCCL fails.
absl::StatusOr<std::string> NewNcclId();

// A disagreement of two ends about sizes is not detected: the exchange ends in
// DeadlineExceeded, or fewer bytes arrive. A group is aborted at its first
// error and returns that error from then on.
class NcclCommunicator : public Communicator {
 public:
  // Waits until all `size` members have called this with the same `id`.
  //
  // Errors: FailedPrecondition if there is no such GPU; InvalidArgument for a
  // rank outside [0, size), an `id` not made by NewNcclId or a timeout that is
  // not positive; DeadlineExceeded if a member does not come; Unavailable if
  // NCCL cannot connect.
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Create(
      absl::string_view id, int rank, int size, const NcclOptions& options);

  ~NcclCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool on_device() const override { return true; }

  absl::Status Exchange(absl::Span<const SendBytes> send,
                        absl::Span<const ReceiveBytes> receive) override;

 private:
  class Gpu;  // NCCL's and CUDA's part

  NcclCommunicator(int rank, int size, std::unique_ptr<Gpu> gpu);

  const int rank_;
  const int size_;
  const std::unique_ptr<Gpu> gpu_;
  absl::Status broken_;
};

}  // namespace gshard

#endif  // SERVICES_COLLECTIVES_NCCL_COMMUNICATOR_H_
