// NCCL worlds: the devices are processes or threads with a GPU each, which send
// with NVIDIA's NCCL: over NVLink, PCIe or the network, as it finds.
//
// Built only where CMake finds CUDA and NCCL; the header names neither.
// Tensors live in host memory, so an exchange stages its bytes through buffers
// on the GPU.

#ifndef SERVICES_COLLECTIVES_NCCL_WORLD_H_
#define SERVICES_COLLECTIVES_NCCL_WORLD_H_

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "services/collectives/communicator.h"
#include "services/collectives/world.h"

namespace gshard {

struct NcclOptions {
  // CUDA's number of this member's GPU. Members of a group need different ones.
  int gpu = 0;
  // For the members of a group to come together, and for each exchange.
  std::chrono::milliseconds timeout = std::chrono::seconds(30);
  // Ends either with Cancelled once it is set; may be null. Must outlive the
  // group.
  const std::atomic<bool>* cancelled = nullptr;
};

// The name of a new group: bytes that one member makes and all must have.
//
// Errors: FailedPrecondition if there is no GPU, Internal if NCCL fails.
absl::StatusOr<std::string> NewNcclId();

// Sizes that two ends disagree about cannot be seen: the exchange ends in
// DeadlineExceeded, or fewer bytes come. A group that had an error is aborted
// and returns that error from then on.
class NcclCommunicator : public Communicator {
 public:
  // Waits until all `size` members have called this with the same `id`.
  //
  // Errors: FailedPrecondition if there is no such GPU; InvalidArgument for a
  // rank outside [0, size), an `id` that NewNcclId did not make or a timeout
  // that is not positive; DeadlineExceeded if a member does not come;
  // Unavailable if NCCL cannot connect.
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Create(
      absl::string_view id, int rank, int size, const NcclOptions& options);

  ~NcclCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }

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

// Groups of GPUs that find each other through another world of the same
// devices.
class NcclWorld : public World {
 public:
  // `bootstrap` must outlive the world and is used by Group alone.
  //
  // Errors: FailedPrecondition if there is no such GPU.
  static absl::StatusOr<std::unique_ptr<NcclWorld>> Create(
      World* bootstrap, const NcclOptions& options);

  int rank() const override { return bootstrap_->rank(); }
  int size() const override { return bootstrap_->size(); }
  absl::StatusOr<Communicator*> Group(absl::Span<const int> ranks) override;

 private:
  NcclWorld(World* bootstrap, const NcclOptions& options)
      : bootstrap_(bootstrap), options_(options) {}

  World* const bootstrap_;
  const NcclOptions options_;
  std::map<std::vector<int>, std::unique_ptr<NcclCommunicator>> groups_;
};

}  // namespace gshard

#endif  // SERVICES_COLLECTIVES_NCCL_WORLD_H_
