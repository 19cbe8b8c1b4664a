// MemberClient: the member's side of CoordinatorService.Join, the same for
// routers and expert workers. Joins, sends heartbeats, passes commands to a
// handler, and joins again when the stream is lost.
//
//   MemberClient member({.coordinator = "host:7000", .role = ..., ...},
//                       &handler);
//   RETURN_IF_ERROR(member.Start());
//   ...
//   member.Stop();

#ifndef SERVICES_RPC_PROCESS_MEMBER_CLIENT_H_
#define SERVICES_RPC_PROCESS_MEMBER_CLIENT_H_

#include <grpcpp/channel.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "proto/gshard/v1/coordinator.pb.h"
#include "services/base/mutex.h"
#include "services/cluster/protocol_versions.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/process/command_lanes.h"
#include "services/rpc/security/security.h"
#include "services/rpc/wire/stream.h"
#include "services/rpc/wire/tracer.h"

namespace gshard {

struct MemberOptions {
  // The coordinator's address; ignored if `channel` is set.
  std::string coordinator = {};
  // An existing connection, e.g. ServerShell::InProcessChannel().
  std::shared_ptr<grpc::Channel> channel = nullptr;
  // Security of calls to `coordinator`; may be null.
  std::shared_ptr<const Security> security = nullptr;

  // Contents of RegisterMember; see coordinator.proto.
  v1::MemberRole role = v1::MEMBER_ROLE_UNSPECIFIED;
  std::string name = {};
  std::string address = {};
  std::string build_version = {};
  int64_t memory_bytes = 0;
  std::string device = {};
  std::string failure_domain = {};
  ProtocolVersions versions = kProtocolVersions;

  // Pause before joining again; doubles with each attempt that is not accepted,
  // up to max_backoff.
  std::chrono::milliseconds min_backoff{100};
  std::chrono::milliseconds max_backoff{1'000};

  // How long the coordinator may be silent; see ChannelOptions. Ignored if
  // `channel` is set.
  std::chrono::milliseconds silence = kDefaultSilence;

  // Niceness of the threads that execute the commands of jobs; see
  // thread_priority.h.
  int training_niceness = 0;

  // Records a span for each command, in the trace that came with the command.
  Tracer tracer = {};

  // How long the coordinator may take to accept.
  std::chrono::milliseconds accept_timeout{10'000};
};

// Implements a member's work. Must outlive Stop().
class MemberHandler {
 public:
  virtual ~MemberHandler() = default;

  // Executes a command and returns the outcome: `status` and `result`; the
  // caller fills in command_id. May block: commands of one session are executed
  // sequentially, in the order of sending, on the session's own thread; those
  // of different sessions run concurrently.
  virtual v1::CommandReply Handle(const v1::Command& command) = 0;

  // Called before Handle(), in command order. If it returns a function, a
  // continuation, Handle() is not called: the continuation completes the
  // command and returns its outcome, on another thread, while the session's
  // next commands run. Continuations of one session and action run
  // sequentially.
  virtual std::function<v1::CommandReply()> Begin(const v1::Command& command) {
    (void)command;
    return nullptr;
  }

  // Makes the Handle() and continuation of `session` that run, or are just
  // about to, return soon, with CANCELLED, since AbortSession has arrived or
  // the stream is lost. Waiting commands have been answered with CANCELLED
  // already; Handle(AbortSession) follows after the running Handle() has
  // returned. Must not block.
  virtual void Interrupt(const std::string& session) = 0;

  // The lease is lost: drop all sessions of jobs, as the coordinator does;
  // sessions of served models stay. No Handle() or continuation is running, and
  // none starts before this returns.
  virtual void OnLost() = 0;

  // Returns the load for the next heartbeat.
  virtual v1::Heartbeat Load() = 0;

  // The coordinator has accepted the member; called again after each OnLost().
  virtual void OnAccepted(const v1::MemberAccepted& accepted) {
    (void)accepted;
  }

  // The coordinator will never accept this member (INVALID_ARGUMENT, or
  // FAILED_PRECONDITION for another protocol version). No further attempt
  // follows. Must not call Stop().
  virtual void OnRefused(const absl::Status& status) { (void)status; }
};

// The session that a command refers to; empty if this release does not know the
// command's action.
const std::string& SessionOf(const v1::Command& command);

// The name of a command's action, e.g. "prepare_step".
std::string ActionName(const v1::Command& command);

// Whether the command occurs only in sessions of jobs.
bool IsOfJob(const v1::Command& command);

// A reply without a result.
v1::CommandReply ReplyWith(const absl::Status& status);

// Thread-safe.
class MemberClient {
 public:
  MemberClient(MemberOptions options, MemberHandler* handler);

  // Calls Stop().
  ~MemberClient();

  MemberClient(const MemberClient&) = delete;
  MemberClient& operator=(const MemberClient&) = delete;

  // Begins to join; returns at once. Errors: InvalidArgument if the
  // coordinator's address is invalid.
  absl::Status Start();

  // Whether the coordinator has accepted the member and the stream is open.
  bool joined() const;

  // Tells the coordinator, and any later one, that the member wants to leave.
  // The member continues to execute commands.
  void SayLeaving();

  // Does so, and waits for permission, even if the coordinator is lost
  // meanwhile. Returns at once if the member is not joined, or the coordinator
  // is of a release that cannot answer. Errors: DeadlineExceeded after
  // `timeout`.
  absl::Status AwaitMayLeave(std::chrono::milliseconds timeout);

  // Leaves: interrupts running commands and finishes the stream in order. After
  // this returns, the handler is not called any more, OnLost() included.
  void Stop();

 private:
  // One stream, from RegisterMember to its end.
  struct Stream;
  class StreamReader;

  // Makes a channel to the coordinator, which is at wherever its name leads to
  // now: a name that has had no address for a while, as of a pod that is moved,
  // gRPC resolves again at growing intervals of up to 2 minutes.
  absl::Status Connect();
  // Runs on the control thread: joins until stopped or refused.
  void Run();
  // Runs one stream to its end; returns how it ended, whether it was accepted,
  // and whether the coordinator let this member go.
  absl::Status RunStream(bool* accepted, bool* let_go);
  void OnMessage(const std::shared_ptr<Stream>& stream,
                 v1::JoinResponse message);
  void OnCommand(const std::shared_ptr<Stream>& stream, v1::Command command);

  const MemberOptions options_;
  MemberHandler* const handler_;
  std::shared_ptr<grpc::Channel> channel_;
  CommandLanes lanes_;  // lane 0; for continuations: the action's number

  mutable Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool joined_ ABSL_GUARDED_BY(mutex_) = false;
  bool leaving_ ABSL_GUARDED_BY(mutex_) = false;
  // True once the last coordinator has given permission, or if it never does.
  bool may_leave_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace gshard

#endif  // SERVICES_RPC_PROCESS_MEMBER_CLIENT_H_
