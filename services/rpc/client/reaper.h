// The reaper: a thread for the cleanup of streams that gRPC's own threads
// cannot do, or would do too late.

#ifndef SERVICES_RPC_CLIENT_REAPER_H_
#define SERVICES_RPC_CLIENT_REAPER_H_

#include <grpcpp/channel.h>

#include <chrono>
#include <functional>
#include <memory>

namespace gshard {

// Runs `work` after `delay`, on one thread that lives as long as the process.
// `work` must be short; it is destroyed on that thread, too. Thread-safe.
void ReapAfter(std::chrono::milliseconds delay, std::function<void()> work);

// Releases a reference to a channel that may be the last one. gRPC 1.51 then
// joins its threads, so one of these must not release it.
void ReapChannel(std::shared_ptr<grpc::Channel> channel);

}  // namespace gshard

#endif  // SERVICES_RPC_CLIENT_REAPER_H_
