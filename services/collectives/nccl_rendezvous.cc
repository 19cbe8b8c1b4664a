#include "services/collectives/nccl_rendezvous.h"

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/collectives/cuda_status.h"

namespace gshard {

NcclRendezvous::NcclRendezvous(int rank, int size, const NcclOptions& options)
    : rank_(rank), addresses_(size), options_(options) {
  options_.cancelled = &aborted_;
}

absl::StatusOr<std::unique_ptr<NcclRendezvous>> NcclRendezvous::Create(
    int rank, int size, const NcclOptions& options) {
  if (size < 1 || rank < 0 || rank >= size) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a rank below the number of members, got rank ",
                     rank, " of ", size));
  }
  RETURN_IF_ERROR(CheckGpu(options.gpu));
  std::unique_ptr<NcclRendezvous> rendezvous(
      new NcclRendezvous(rank, size, options));
  if (rank == 0) {
    ASSIGN_OR_RETURN(rendezvous->id_, NewNcclId());
    for (int r = 1; r < size; ++r) rendezvous->addresses_[r] = rendezvous->id_;
  }
  return rendezvous;
}

absl::StatusOr<Communicator*> NcclRendezvous::Join(
    absl::Span<const std::string> addresses) {
  if (addresses.size() != addresses_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected the addresses of ", addresses_.size(),
                     " members, got ", addresses.size()));
  }
  if (group_ != nullptr) {
    return absl::FailedPreconditionError("the members have met before");
  }
  ASSIGN_OR_RETURN(group_, NcclCommunicator::Create(
                               rank_ == 0 ? id_ : addresses[0], rank_,
                               static_cast<int>(addresses_.size()), options_));
  return group_.get();
}

}  // namespace gshard
