// ConnectionWatch: accepts a server's TCP connections, hands them to gRPC, and
// monitors the memory that they make gRPC hold: see connection_meter.h for the
// rules. A connection that breaks one is shut down and its memory freed; a call
// whose request does not arrive in time gets DEADLINE_EXCEEDED.
//
// gRPC does not say what it has received, but the kernel does. So this keeps a
// duplicate of each connection's descriptor and reads the kernel's counters:
// all 4 ms while something comes on it, and otherwise when epoll says so. Unix
// sockets have no such counters. Their files' permissions say who may use them;
// for their calls only the time of a request counts.

#ifndef SERVICES_RPC_SERVER_CONNECTION_WATCH_H_
#define SERVICES_RPC_SERVER_CONNECTION_WATCH_H_

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "services/base/mutex.h"
#include "services/metrics/metrics.h"
#include "services/rpc/server/connection_meter.h"
#include "services/rpc/server/look_schedule.h"

namespace gshard {

// Thread-safe after Start().
class ConnectionWatch : public std::enable_shared_from_this<ConnectionWatch> {
 public:
  // Takes over the descriptor of an accepted connection.
  using HandOver = std::function<void(int descriptor)>;

  explicit ConnectionWatch(const MeterLimits& limits);
  ~ConnectionWatch();

  ConnectionWatch(const ConnectionWatch&) = delete;
  ConnectionWatch& operator=(const ConnectionWatch&) = delete;

  // Connections, those refused and ended, calls that were late, bytes that are
  // held. Before Start(); `metrics` must outlive Stop().
  void AddMetrics(Metrics& metrics);

  // Begins to accept from `listeners`, listening sockets that do not block,
  // which this owns; there may be none. Raises the process's limit of open
  // files to the most that it may have. Once. Errors: ResourceExhausted.
  absl::Status Start(std::vector<int> listeners, HandOver hand_over);

  // Closes the listeners. Open connections stay and are still watched.
  void StopAccepting();
  // Then ends the thread: nothing is watched any more.
  void Stop();

  // What is told of a call. All know calls by the number that Begin() returns.

  // A call came on the connection of `peer`, as gRPC names it, and its first
  // message may be read now. Keeps a reference to `call` as long as its time
  // may run out.
  uint64_t Begin(const std::string& peer, const ConnectionMeter::Call& what,
                 grpc_call* call);
  void Deliver(uint64_t call, int64_t bytes);
  void StopReading(uint64_t call);
  void End(uint64_t call);
  // The peer is a member of the system: it may do what only members may.
  void Trust(const std::string& peer);
  // A call was refused on the connection that has this context.
  void Refuse(const grpc_auth_context* context, int64_t bytes);
  // Brief calls that are not over, of that connection.
  int64_t BriefCalls(const grpc_auth_context* context) const;

 private:
  using Clock = LookSchedule::Clock;
  using Id = ConnectionMeter::Id;

  struct Connection {
    int descriptor;
    std::string peer;
    grpc_auth_context* context = nullptr;  // once a call has begun; owned
  };

  // All but the last few are for the thread alone.
  void Run();
  int WaitMillis(Clock::time_point now);
  void Accept(size_t listener);
  void Close(Id id);
  // Hands over the newcomers that may begin.
  void BeginNewcomers(Clock::time_point now);
  // Counters of connections that something came on, or of all.
  void Look(Clock::time_point now);
  void Sweep(Clock::time_point now);
  // Whether there was something new.
  bool LookAt(Id id, Clock::time_point now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Judge(Clock::time_point now);
  // epoll tells once: of news, or of a member's connection its end alone. Of
  // newcomers that the client ends its side too.
  void Arm(int operation, Id id, int descriptor, bool news) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Wake() const;
  // Of a call, told with the lock; then lets go of it if it has no time any
  // more.
  void Tell(Id call, const std::function<void()>& news);
  // The reference is the caller's then. Null: there is none.
  grpc_call* Release(Id call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const MeterLimits limits_;
  HandOver hand_over_;
  int epoll_ = -1;
  int wake_ = -1;
  std::vector<int> listeners_ ABSL_GUARDED_BY(mutex_);

  // Of the thread alone.
  std::map<Id, int> active_;  // connections, and looks without news
  LookSchedule schedule_;

  // Held while a connection is handed over: none is once this has stopped
  // accepting.
  Mutex accept_mutex_;

  Counter refused_connections_;
  Counter ended_connections_;
  Counter late_calls_;

  mutable Mutex mutex_;
  ConnectionMeter meter_ ABSL_GUARDED_BY(mutex_);
  std::map<Id, Connection> connections_ ABSL_GUARDED_BY(mutex_);
  // Of connections_, those that have not begun, and gRPC's descriptors of them.
  std::map<Id, int> newcomers_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Id> by_peer_ ABSL_GUARDED_BY(mutex_);
  std::map<const grpc_auth_context*, Id> by_context_ ABSL_GUARDED_BY(mutex_);
  // Those that have a time; referenced.
  std::map<Id, grpc_call*> calls_ ABSL_GUARDED_BY(mutex_);
  Id next_id_ ABSL_GUARDED_BY(mutex_);
  bool asleep_ ABSL_GUARDED_BY(mutex_) = false;  // without a time to wake up at
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

}  // namespace gshard

#endif  // SERVICES_RPC_SERVER_CONNECTION_WATCH_H_
