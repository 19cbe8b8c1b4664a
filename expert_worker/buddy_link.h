// BuddyLink: connects a session to the worker that keeps the replica of its
// experts.

#ifndef EXPERT_WORKER_BUDDY_LINK_H_
#define EXPERT_WORKER_BUDDY_LINK_H_

#include <grpcpp/channel.h>

#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/client/tensor_transfer.h"
#include "services/train/parameter_store.h"

namespace gshard {

// Thread-safe.
class BuddyLink {
 public:
  // Connects on first use. Errors: InvalidArgument if `address` is invalid.
  static absl::StatusOr<std::shared_ptr<BuddyLink>> Create(
      const std::string& session, const std::string& address,
      const ChannelOptions& options = {});

  // Returns when the buddy has the sums of `step`. Errors: those of
  // ExpertWorkerService.ReplicateGradients; Unavailable if it does not have
  // them within PushTimeout; Cancelled after Stop().
  absl::Status Push(int64_t step, const GradientList& sums);

  // Aborts the call in progress and sends nothing more.
  void Stop() { stop_.request_stop(); }

 private:
  BuddyLink(std::string session, std::string address,
            std::shared_ptr<grpc::Channel> channel)
      : session_(std::move(session)),
        address_(std::move(address)),
        channel_(std::move(channel)) {}

  const std::string session_;
  const std::string address_;
  const std::shared_ptr<grpc::Channel> channel_;
  std::stop_source stop_;
};

}  // namespace gshard

#endif  // EXPERT_WORKER_BUDDY_LINK_H_
