// The reaper: a thread for the cleanup of streams that gRPC's own threads
// cannot do, or not in time.

#ifndef SERVICES_RPC_CLIENT_REAPER_H_
#define SERVICES_RPC_CLIENT_REAPER_H_

#include <grpcpp/channel.h>

#include <chrono>
#include <functional>
#include <memory>

namespace gshard {

// Runs `work` once `delay` has passed, on one thread for the whole process,
// which lives as long as that. `work` is short, and destroyed there, too.
// Thread-safe.
void ReapAfter(std::chrono::milliseconds delay, std::function<void()> work);

// Lets go of a channel that may be the last one: gRPC 1.51 joins its threads
// then, and must not do so on one of these.
void ReapChannel(std::shared_ptr<grpc::Channel> channel);

}  // namespace gshard

#endif  // SERVICES_RPC_CLIENT_REAPER_H_
