// WorkerConnection: a stream between this router and an expert worker, which
// all sessions of a kind share: there is one for served models and one for
// jobs. It is opened on first use and reopened on use after a loss.

#ifndef ROUTER_WORKERS_WORKER_CONNECTION_H_
#define ROUTER_WORKERS_WORKER_CONNECTION_H_

#include <grpcpp/channel.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "absl/status/statusor.h"
#include "services/base/mutex.h"
#include "services/exchange/worker_stub.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/shared/shared_stream.h"
#include "services/rpc/wire/stream.h"
#include "services/rpc/wire/tracer.h"

namespace gshard {

// Thread-safe.
class WorkerConnection final : public WorkerStub {
 public:
  // `name` is the worker's, for errors. `options.frame_limits` bounds frames in
  // both directions. If `sharing` has memory, it is offered to the worker, see
  // shared_stream.h.
  WorkerConnection(absl::string_view name,
                   std::shared_ptr<grpc::Channel> channel,
                   StreamOptions options = {}, Tracer tracer = {},
                   SharingOptions sharing = {});

  // Ends the stream; calls in flight get CANCELLED. Does not block: a callback
  // in progress may still be running.
  ~WorkerConnection() override;

  // Propagates the thread's traces (trace_scope.h). Each sampled one gets its
  // own span, with the worker's as a child: a single span with links would not
  // show time in the other traces.
  uint64_t Call(WorkerCall call, OnReply on_reply) override;
  uint64_t Ping(const std::string& session, OnReply on_reply) override;
  void Cancel(uint64_t call_id) override;

  // Number of calls waiting for replies.
  size_t pending() const;

 private:
  struct Stream;
  class ReplyReader;

  uint64_t Send(ExpertFrame frame, OnReply on_reply);
  std::shared_ptr<Stream> LiveStream() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<grpc::Channel> channel_;
  const StreamOptions options_;
  const Tracer tracer_;
  const SharingOptions sharing_;

  mutable Mutex mutex_;
  uint64_t last_call_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<Stream> stream_ ABSL_GUARDED_BY(mutex_);  // null until used
};

// The connections of a router by name, address and incarnation: a restarted
// worker is connected to at once, without the backoff of the lost connection.
// Thread-safe.
class WorkerConnections {
 public:
  // `channel` applies to all of them. Memory is offered to all workers, as no
  // address tells who is on this machine: those elsewhere cannot open it.
  explicit WorkerConnections(ChannelOptions channel, Tracer tracer = {},
                             SharingOptions sharing = {});

  // Errors: InvalidArgument if `address` is invalid.
  absl::StatusOr<std::shared_ptr<WorkerConnection>> Get(
      const std::string& name, const std::string& address,
      int64_t incarnation = 0);

  // Closes unused ones.
  void Prune();

 private:
  const ChannelOptions channel_;
  const Tracer tracer_;
  const SharingOptions sharing_;
  Mutex mutex_;
  std::map<std::tuple<std::string, std::string, int64_t>,
           std::shared_ptr<WorkerConnection>>
      connections_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gshard

#endif  // ROUTER_WORKERS_WORKER_CONNECTION_H_
