// Members: the routers and expert workers that have joined, their streams, and
// their unanswered commands.

#ifndef SERVICES_COORDINATOR_MEMBERSHIP_MEMBERS_H_
#define SERVICES_COORDINATOR_MEMBERSHIP_MEMBERS_H_

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/gshard/v1/coordinator.pb.h"
#include "services/base/monotonic_time.h"
#include "services/base/mutex.h"
#include "services/cluster/membership.h"
#include "services/cluster/protocol_versions.h"
#include "services/rpc/wire/stream.h"
#include "services/rpc/wire/trace_context.h"
#include "services/rpc/wire/tracer.h"

namespace gshard {

// A member between one Join and its loss.
struct MemberKey {
  std::string name;
  int64_t incarnation = 0;

  auto operator<=>(const MemberKey&) const = default;
};

inline MemberKey KeyOf(const Member& member) {
  return {member.info.id, member.incarnation};
}

// The outcome of a command: the member's reply with an OK status, or its error,
// prefixed with its name; UNAVAILABLE if the member was lost or its stream has
// ended, RESOURCE_EXHAUSTED if it reads commands too slowly.
using OnReply = std::function<void(absl::StatusOr<v1::CommandReply>)>;

// The trace of all of a session's commands for a step, and the span of the
// step, which is their parent.
TraceContext StepTrace(const std::string& session, int64_t step);

struct MembersOptions {
  absl::Duration lease = absl::Seconds(5);
  // Timeout of a command for a member with regular heartbeats; a microbatch
  // additionally has its own time limit and that of a preceding one, and
  // commands behind the load of their session that of the load. On timeout the
  // member is cut off like a silent one.
  absl::Duration command_timeout = absl::Minutes(10);
  // The same for commands whose duration depends on the model's size: loads and
  // checkpoints. Routers that index the text of a job have more.
  absl::Duration load_timeout = absl::Hours(2);
  ProtocolVersions versions = kProtocolVersions;
  bool allow_mixed_devices = false;  // see Membership::Options
  std::function<MonotonicTime()> clock = MonotonicTime::Now;
  // Names of the models that a joining router is to serve; on any thread, must
  // not block.
  std::function<std::set<std::string>()> models = [] {
    return std::set<std::string>();
  };
  // Records a span per command.
  Tracer tracer = {};
  // Called after a member has joined, asks to leave, or is lost, but not by
  // Shutdown(), and after served models take another amount of its memory; on
  // any thread, without locks; must not block.
  std::function<void()> on_change = [] {};
};

// Thread-safe. Callbacks run on any thread, without locks.
class Members {
 public:
  using Sender = StreamSender<v1::JoinResponse>;

  explicit Members(MembersOptions options);
  ~Members() { Shutdown(); }

  // The four events of a member's stream.
  //
  // Errors, which end the stream: those of CoordinatorService.Join.
  absl::StatusOr<MemberKey> Register(const v1::RegisterMember& request,
                                     std::shared_ptr<Sender> sender);
  absl::Status OnHeartbeat(const MemberKey& key, const v1::Heartbeat& load);
  absl::Status OnCommandReply(const MemberKey& key, v1::CommandReply reply);
  void OnEnd(const MemberKey& key, const absl::Status& why);

  // Sorted by name.
  std::vector<Member> List(std::optional<MemberRole> role = std::nullopt) const;
  // The expert workers, and routers, eligible for new work: those that are not
  // leaving.
  std::vector<Member> Workers() const;
  std::vector<Member> Routers() const;
  std::vector<v1::Member> Describe() const;

  // Sets Member::served_bytes of all members; 0 for those not named. Heartbeats
  // do not tell: they count the sessions of jobs, too.
  void SetServed(const std::map<MemberKey, int64_t>& bytes);

  // Tells a leaving member, once, that it may go. `reason` is human-readable.
  void LetGo(const MemberKey& key, const std::string& reason);

  // Sends a command (its id is filled in). `on_reply` is called once. `more`
  // extends the timeout of its kind of command.
  void Send(const MemberKey& key, v1::Command command, OnReply on_reply,
            absl::Duration more = absl::ZeroDuration());

  // Cuts off members whose lease or command timeout has expired. Called by a
  // separate thread; by the test if the clock is not MonotonicTime::Now.
  void Expire();

  const Tracer& tracer() const { return options_.tracer; }

  // Dismisses all members, ends their streams with UNAVAILABLE and refuses new
  // ones.
  void Shutdown();

 private:
  struct Pending {
    OnReply on_reply;
    std::string what;     // for errors: "prepare_step of demo/1"
    std::string loads;    // the session, if it is a LoadSession
    absl::Duration time;  // its timeout
    MonotonicTime end;    // its deadline
    OpenSpan span = OpenSpan();
  };

  struct Connection {
    int64_t incarnation = 0;
    v1::RegisterMember registered;
    v1::Heartbeat heartbeat;
    MonotonicTime last_message;
    std::shared_ptr<Sender> sender;
    std::map<uint64_t, Pending> pending;
    bool let_go = false;

    void LetGo(const std::string& reason);
    // The first overdue command; null if there is none.
    const Pending* Overdue(MonotonicTime now) const;
    // The latest time at which the member begins the next command of `session`:
    // it finishes a load first.
    MonotonicTime EndOfLoad(const std::string& session,
                            MonotonicTime now) const;
  };

  // A child of its step's span, or a root span.
  OpenSpan SpanOf(const v1::Command& command) const;
  // Null if the member has been lost.
  Connection* Find(const MemberKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends the member's connection; returns callbacks to run without the lock.
  std::vector<OnReply> Drop(const std::string& name, const absl::Status& end)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<Member> Staying(MemberRole role) const;
  absl::Duration TimeFor(const v1::Command& command) const;
  void Fail(std::vector<OnReply> pending, const absl::Status& why);
  void WatchLeases();

  const MembersOptions options_;
  mutable Mutex mutex_;
  CondVar wake_;
  Membership membership_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Connection> connections_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_command_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread lease_thread_;
};

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_MEMBERSHIP_MEMBERS_H_
