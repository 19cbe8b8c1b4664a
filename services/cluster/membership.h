// Membership: the routers and expert workers that hold a lease.
//
// A process joins, renews its lease before it runs out, and leaves; one that
// does neither is expired. All decisions are functions of the calls and the
// times passed in: there is no clock and no thread, and the caller serializes
// the calls. Changes are returned as events for the caller to act on.

#ifndef SERVICES_CLUSTER_MEMBERSHIP_H_
#define SERVICES_CLUSTER_MEMBERSHIP_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "services/base/monotonic_time.h"

namespace gshard {

enum class MemberRole { kRouter, kExpertWorker };

absl::string_view MemberRoleName(MemberRole role);  // "router", ...

// What a process says of itself when it joins.
struct MemberInfo {
  // Unique among members: 1 to 128 letters, digits, '.', '_' or '-'.
  std::string id;
  MemberRole role = MemberRole::kRouter;

  // Where it is reached, at most 256 bytes without spaces: "host:port" or
  // "unix:/path". Required of expert workers, to which routers connect.
  std::string address;

  // Memory in bytes that a worker offers to experts: at least 0, where 0 means
  // that it does not say.
  int64_t capacity_bytes = 0;

  // What computes the experts of a worker: "cpu" or "cuda".
  std::string device = "cpu";

  // Of a worker: see failure_domains.h.
  std::string failure_domain = {};

  bool operator==(const MemberInfo&) const = default;
};

struct Member {
  MemberInfo info;

  // Assigned at Join and never reused, so that a restarted process is not
  // mistaken for its predecessor.
  int64_t incarnation = 0;

  // It wants to leave: nothing new is placed on it.
  bool leaving = false;

  MonotonicTime joined;
  MonotonicTime lease_expiry;  // expired from this time on
};

struct MembershipEvent {
  enum class Kind {
    kJoined,
    kLeft,     // said so
    kExpired,  // fell silent
  };
  Kind kind;
  Member member;  // as it was last
};

class Membership {
 public:
  struct Options {
    absl::Duration lease = absl::Seconds(5);
    int64_t max_members = 4096;
    // Whether expert workers may compute on different devices. Their results
    // then differ in their last bits, and with them what a job trains.
    bool allow_mixed_devices = false;
  };

  // REQUIRES: the lease is positive and max_members at least 1.
  explicit Membership(Options options);

  // Adds a member with a lease from `now`. On success appends to `events` the
  // expiry of an earlier holder of the id, if it had run out unnoticed, and the
  // joining.
  //
  // Errors, none of which changes anything:
  // * InvalidArgument: a field of `info` is malformed.
  // * AlreadyExists: a member with a running lease has the id. Try again after
  //   it left or expired.
  // * FailedPrecondition: an expert worker with a running lease computes on
  //   another device.
  // * ResourceExhausted: there are max_members already.
  absl::StatusOr<Member> Join(const MemberInfo& info, MonotonicTime now,
                              std::vector<MembershipEvent>* events);

  // Extends the lease to `now` plus its length; never shortens it.
  //
  // Errors: NotFound if the member left, expired (noticed or not), or joined
  // again under another incarnation. The process must join anew.
  absl::Status Renew(absl::string_view id, int64_t incarnation,
                     MonotonicTime now);

  // Notes that a member wants to leave; whether that is new. False without a
  // member, as in Renew.
  bool SetLeaving(absl::string_view id, int64_t incarnation);

  // Removes a member. Errors: NotFound as in Renew, though an unnoticed expiry
  // is no error.
  absl::StatusOr<MembershipEvent> Leave(absl::string_view id,
                                        int64_t incarnation);

  // Removes the members whose leases have run out, in order of their ids.
  std::vector<MembershipEvent> Expire(MonotonicTime now);

  // When Expire has something to do next, unless leases are renewed;
  // InfiniteFuture() without members.
  MonotonicTime NextExpiry() const;

  // Members in order of their ids, of one role or of all. Includes expiries not
  // yet noticed.
  std::vector<Member> List(std::optional<MemberRole> role = std::nullopt) const;

  // Null if there is none. Valid until the next change.
  const Member* Find(absl::string_view id) const;

  // Grows by one with every event; renewals do not count.
  int64_t generation() const { return generation_; }

 private:
  // Whether an expert worker may join those that are there.
  absl::Status CheckDevice(const MemberInfo& info, MonotonicTime now) const;
  MembershipEvent Remove(std::map<std::string, Member>::iterator member,
                         MembershipEvent::Kind kind);

  Options options_;
  std::map<std::string, Member> members_;  // by id
  int64_t last_incarnation_ = 0;
  int64_t generation_ = 0;
};

}  // namespace gshard

#endif  // SERVICES_CLUSTER_MEMBERSHIP_H_
