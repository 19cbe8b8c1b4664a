// NcclRendezvous: rendezvous with NVIDIA's NCCL for processes with a GPU each,
// without a shared folder. Rank 0's address for everybody is the group's id;
// the others have none.

#ifndef SERVICES_COLLECTIVES_NCCL_RENDEZVOUS_H_
#define SERVICES_COLLECTIVES_NCCL_RENDEZVOUS_H_

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "services/collectives/nccl_communicator.h"
#include "services/collectives/rendezvous.h"

namespace gshard {

class NcclRendezvous : public Rendezvous {
 public:
  // `options.cancelled` is not used. Errors: InvalidArgument for a rank outside
  // [0, size); FailedPrecondition if there is no such GPU.
  static absl::StatusOr<std::unique_ptr<NcclRendezvous>> Create(
      int rank, int size, const NcclOptions& options);

  const std::vector<std::string>& addresses() const override {
    return addresses_;
  }
  absl::StatusOr<Communicator*> Join(
      absl::Span<const std::string> addresses) override;
  void Abort() override { aborted_ = true; }

 private:
  NcclRendezvous(int rank, int size, const NcclOptions& options);

  const int rank_;
  std::vector<std::string> addresses_;
  std::string id_;  // from rank 0
  std::atomic<bool> aborted_ = false;
  NcclOptions options_;
  std::unique_ptr<NcclCommunicator> group_;
};

}  // namespace gshard

#endif  // SERVICES_COLLECTIVES_NCCL_RENDEZVOUS_H_
