#include "tests/services/collectives/local_rendezvous.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"

namespace gshard {

// The world's communicator, with an error message for its own member's end.
class LocalRendezvous::Group : public Communicator {
 public:
  Group(Communicator* group, const std::atomic<bool>* aborted)
      : group_(group), aborted_(aborted) {}

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  bool on_device() const override { return group_->on_device(); }

  absl::Status Exchange(absl::Span<const SendBytes> send,
                        absl::Span<const ReceiveBytes> receive) override {
    absl::Status status = group_->Exchange(send, receive);
    if (!status.ok() && *aborted_) return absl::CancelledError("aborted");
    return status;
  }

 private:
  Communicator* const group_;
  const std::atomic<bool>* const aborted_;
};

LocalRendezvous::LocalRendezvous(std::unique_ptr<LocalWorld> world)
    : world_(std::move(world)), addresses_(world_->size()) {}

LocalRendezvous::~LocalRendezvous() = default;

absl::StatusOr<Communicator*> LocalRendezvous::Join(
    absl::Span<const std::string> addresses) {
  if (addresses.size() != addresses_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected the addresses of ", addresses_.size(),
                     " members, got ", addresses.size()));
  }
  ASSIGN_OR_RETURN(Communicator* const group, WholeGroup(*world_));
  group_ = std::make_unique<Group>(group, &aborted_);
  return group_.get();
}

void LocalRendezvous::Abort() {
  aborted_ = true;
  world_->Leave();
}

}  // namespace gshard
