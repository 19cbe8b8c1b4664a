// WorkerConnection: the one stream between this router and an expert worker,
// which all sessions and calls share. It is opened when first used, and again
// when used after it was lost.

#ifndef ROUTER_WORKER_CONNECTION_H_
#define ROUTER_WORKER_CONNECTION_H_

#include <grpcpp/channel.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "router/worker_state.h"
#include "services/rpc/channel.h"
#include "services/rpc/stream.h"

namespace gshard {

// Thread-safe.
class WorkerConnection {
 public:
  // Told the outcome of a call, once: the worker's REPLY, whose status is OK,
  // or an error that names the worker. Must not block.
  using OnReply = std::function<void(absl::StatusOr<ExpertFrame>)>;

  // `name` is the worker's, for errors. Frames are at most as long as
  // `options.frame_limits` says, in both directions.
  WorkerConnection(std::string name, std::shared_ptr<grpc::Channel> channel,
                   StreamOptions options = {});

  // Ends the stream; calls in flight get CANCELLED. Waits for nobody: a reply
  // that is being told may be told for a moment longer.
  ~WorkerConnection();

  WorkerConnection(const WorkerConnection&) = delete;
  WorkerConnection& operator=(const WorkerConnection&) = delete;

  // Sends a RUN frame, whose kind and call_id are filled in. Returns the call's
  // id; `on_reply` may have been called before. Errors of the outcome: what the
  // worker replied; UNAVAILABLE if the stream was lost; RESOURCE_EXHAUSTED if
  // the frame is too long, or too much waits to be sent.
  uint64_t Call(ExpertFrame frame, OnReply on_reply);

  // Asks whether the worker lives and has the session: it answers at once,
  // whatever it is computing. Otherwise as Call().
  uint64_t Ping(const std::string& session, OnReply on_reply);

  // Nobody waits for the call any more: the worker is told so, and `on_reply`
  // is not called unless it is running already.
  void Cancel(uint64_t call_id);

  // "expert worker 'name'".
  const std::string& name() const { return name_; }

  // Calls that wait for their replies.
  size_t pending() const;

  // What callers know of the worker; may outlive the connection.
  WorkerState& state() { return *state_; }
  const std::shared_ptr<WorkerState>& shared_state() { return state_; }

 private:
  struct Stream;
  class ReplyReader;

  uint64_t Send(ExpertFrame frame, OnReply on_reply);
  std::shared_ptr<Stream> LiveStream();  // needs mutex_

  const std::string name_;
  const std::shared_ptr<grpc::Channel> channel_;
  const StreamOptions options_;
  const std::shared_ptr<WorkerState> state_ = std::make_shared<WorkerState>();

  mutable std::mutex mutex_;
  uint64_t last_call_id_ = 0;       // guarded by mutex_
  std::shared_ptr<Stream> stream_;  // guarded by mutex_; null until used
};

// The connections of a router by name, address and incarnation: a worker that
// was started again is connected to at once, without the backoff of the
// connection that was lost. Thread-safe.
class WorkerConnections {
 public:
  // `channel` says how all of them are made.
  explicit WorkerConnections(ChannelOptions channel);

  // Errors: InvalidArgument if `address` is not one.
  absl::StatusOr<std::shared_ptr<WorkerConnection>> Get(
      const std::string& name, const std::string& address,
      int64_t incarnation = 0);

  // Closes those that nobody uses.
  void Prune();

 private:
  const ChannelOptions channel_;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::map<std::tuple<std::string, std::string, int64_t>,
           std::shared_ptr<WorkerConnection>>
      connections_;
};

}  // namespace gshard

#endif  // ROUTER_WORKER_CONNECTION_H_
