// ConnectionWatch: accepts a server's TCP connections, passes them to gRPC, and
// monitors the memory that they make gRPC hold, by the rules of
// connection_meter.h. A connection that breaks a rule is shut down and its
// memory freed; a call whose request does not arrive in time gets
// DEADLINE_EXCEEDED.
//
// gRPC does not report how many bytes it has received, but the kernel does. So
// the watch keeps a duplicate of each connection's descriptor and reads the
// kernel's counters: every 4 ms while data arrive on the connection, and
// otherwise when epoll reports data. Unix sockets have no such counters; file
// permissions control their use, and only the time limit of a request applies
// to their calls.

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
  // Takes ownership of the descriptor of an accepted connection.
  using HandOver = std::function<void(int descriptor)>;

  explicit ConnectionWatch(const MeterLimits& limits);
  ~ConnectionWatch();

  ConnectionWatch(const ConnectionWatch&) = delete;
  ConnectionWatch& operator=(const ConnectionWatch&) = delete;

  // Adds metrics: open, refused and ended connections, late calls, and bytes
  // held. Call before Start(); `metrics` must outlive Stop().
  void AddMetrics(Metrics& metrics);

  // Begins to accept from `listeners`, which are non-blocking listening
  // sockets; the watch takes ownership of them; there may be none. Raises the
  // process's soft limit of open files to the hard limit. Call once. Errors:
  // ResourceExhausted.
  absl::Status Start(std::vector<int> listeners, HandOver hand_over);

  // Closes the listeners. Open connections stay and are still watched.
  void StopAccepting();
  // Also ends the thread: nothing is watched any longer.
  void Stop();

  // Notifications of calls. The others identify a call by the number that
  // Begin() returns.

  // A call has begun on the connection of `peer`, in gRPC's notation, and its
  // first message may arrive. Keeps a reference to `call` while its time limit
  // runs.
  uint64_t Begin(const std::string& peer, const ConnectionMeter::Call& what,
                 grpc_call* call);
  void Deliver(uint64_t call, int64_t bytes);
  void StopReading(uint64_t call);
  void End(uint64_t call);
  // The peer is a member: it has made a call that only members may make.
  void Trust(const std::string& peer);
  // Whether a call has begun on the connection with this context, so that
  // Refuse() finds it; true for a server without listeners.
  bool Knows(const grpc_auth_context* context) const;
  // A call was refused on the connection with this context.
  void Refuse(const grpc_auth_context* context, int64_t bytes);
  // Open brief calls (see ConnectionMeter) on the connection with this context.
  int64_t BriefCalls(const grpc_auth_context* context) const;

 private:
  using Clock = LookSchedule::Clock;
  using Id = ConnectionMeter::Id;

  struct Connection {
    int descriptor;
    std::string peer;
    grpc_auth_context* context = nullptr;  // set by the first call; owned
  };

  // All methods up to Judge() run on the watch's thread only.
  void Run();
  int WaitMillis(Clock::time_point now);
  void Accept(size_t listener);
  void Close(Id id);
  // Passes newcomers that may begin to gRPC.
  void BeginNewcomers(Clock::time_point now);
  // Look() reads the counters of active connections, Sweep() those of all
  // others.
  void Look(Clock::time_point now);
  void Sweep(Clock::time_point now);
  // Whether anything has happened on the connection.
  bool LookAt(Id id, Clock::time_point now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Judge(Clock::time_point now);
  // Arms epoll for one event of the connection: data if `news`, else only its
  // end, which is enough for a member's. For newcomers also the client's
  // half-close.
  void Arm(int operation, Id id, int descriptor, bool news) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Wake() const;
  // Runs `news`, which notifies the meter of an event of `call`, under the
  // lock. Then releases the call if it has no time limit any more.
  void Tell(Id call, const std::function<void()>& news);
  // Passes the reference to the caller; null if there is none.
  grpc_call* Release(Id call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const MeterLimits limits_;
  HandOver hand_over_;
  int epoll_ = -1;
  int wake_ = -1;
  std::vector<int> listeners_ ABSL_GUARDED_BY(mutex_);

  // Used by the thread only.
  std::map<Id, int> active_;  // connections, and looks in a row without news
  LookSchedule schedule_;

  // Held while a connection is passed to gRPC, so that none is passed after
  // StopAccepting().
  Mutex accept_mutex_;

  Counter refused_connections_;
  Counter ended_connections_;
  Counter late_calls_;

  mutable Mutex mutex_;
  ConnectionMeter meter_ ABSL_GUARDED_BY(mutex_);
  std::map<Id, Connection> connections_ ABSL_GUARDED_BY(mutex_);
  // The connections that have not begun, with the descriptors that gRPC will
  // get.
  std::map<Id, int> newcomers_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Id> by_peer_ ABSL_GUARDED_BY(mutex_);
  std::map<const grpc_auth_context*, Id> by_context_ ABSL_GUARDED_BY(mutex_);
  // Referenced calls that have a time limit.
  std::map<Id, grpc_call*> calls_ ABSL_GUARDED_BY(mutex_);
  Id next_id_ ABSL_GUARDED_BY(mutex_);
  bool asleep_ ABSL_GUARDED_BY(mutex_) = false;  // waits without a timeout
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

}  // namespace gshard

#endif  // SERVICES_RPC_SERVER_CONNECTION_WATCH_H_
