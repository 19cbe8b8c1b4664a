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

// A process's own description when it joins.
struct MemberInfo {
  // Unique among members: 1 to 128 letters, digits, '.', '_' or '-'.
  std::string id;
  MemberRole role = MemberRole::kRouter;

  // Its address, at most 256 bytes without spaces: "host:port" or "unix:/path".
  // Required for expert workers, to which routers connect.
  std::string address;

  // Memory in bytes that a worker offers for experts; 0 means unknown.
  int64_t capacity_bytes = 0;

  // The device that computes what the member runs: "cpu" or "cuda".
  std::string device = "cpu";

  // For workers: see failure_domains.h.
  std::string failure_domain = {};

  bool operator==(const MemberInfo&) const = default;
};

struct Member {
  MemberInfo info;

  // Assigned at Join and never reused, so that a restarted process is not
  // mistaken for its predecessor.
  int64_t incarnation = 0;

  // It is leaving: nothing new is placed on it.
  bool leaving = false;

  // Bytes of info.capacity_bytes that served models take, or are about to.
  int64_t served_bytes = 0;

  MonotonicTime joined;
  MonotonicTime lease_expiry;  // expired from this time on
};

class Membership {
 public:
  struct Options {
    absl::Duration lease = absl::Seconds(5);
    int64_t max_members = 4096;
    // Whether members of one role may compute on different devices. Their
    // results, and so trained models, then differ in the last bits.
    bool allow_mixed_devices = false;
  };

  // REQUIRES: the lease is positive and max_members at least 1.
  explicit Membership(Options options);

  // Adds a member with a lease from `now`. It replaces an expired holder of the
  // id, whose expiry is not reported any more.
  //
  // Errors, which leave everything unchanged:
  // * InvalidArgument: a field of `info` is malformed.
  // * AlreadyExists: a member with a valid lease has the id. Try again after it
  //   left or expired.
  // * FailedPrecondition: a member of the same role with a valid lease computes
  //   on another device.
  // * ResourceExhausted: there are already max_members.
  absl::StatusOr<Member> Join(const MemberInfo& info, MonotonicTime now);

  // Extends the lease to `now` plus its length; never shortens it.
  //
  // Errors: NotFound if the member left, expired (reported or not), or rejoined
  // with another incarnation. The process must rejoin.
  absl::Status Renew(absl::string_view id, int64_t incarnation,
                     MonotonicTime now);

  // Marks a member as leaving; returns whether that is new. False for an
  // unknown member, as in Renew.
  bool SetLeaving(absl::string_view id, int64_t incarnation);

  // Sets Member::served_bytes; returns whether that changes it. False for an
  // unknown member, as in Renew.
  bool SetServed(absl::string_view id, int64_t incarnation, int64_t bytes);

  // Removes a member. Errors: NotFound as in Renew, except that an unreported
  // expiry is no error.
  absl::Status Leave(absl::string_view id, int64_t incarnation);

  // Removes and returns the members whose leases have run out, in order of
  // their ids.
  std::vector<Member> Expire(MonotonicTime now);

  // When the next lease expires, unless renewed; InfiniteFuture() without
  // members.
  MonotonicTime NextExpiry() const;

  // Members in order of their ids, of one role or of all, including unreported
  // expiries.
  std::vector<Member> List(std::optional<MemberRole> role = std::nullopt) const;

  // Null if there is none. Valid until the next change.
  const Member* Find(absl::string_view id) const;

 private:
  // Checks whether an expert worker may join the present ones.
  absl::Status CheckDevice(const MemberInfo& info, MonotonicTime now) const;

  Options options_;
  std::map<std::string, Member> members_;  // by id
  int64_t last_incarnation_ = 0;
};

}  // namespace gshard

#endif  // SERVICES_CLUSTER_MEMBERSHIP_H_
