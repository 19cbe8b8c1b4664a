#include "services/cluster/membership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/name.h"
#include "services/base/status_macros.h"
#include "services/cluster/failure_domains.h"

namespace gshard {
namespace {

constexpr size_t kMaxAddressBytes = 256;
constexpr size_t kMaxQuotedBytes = 64;  // limit for values in errors

std::string Quote(absl::string_view text) {
  return absl::StrCat("\"", absl::CHexEscape(text.substr(0, kMaxQuotedBytes)),
                      text.size() > kMaxQuotedBytes ? "..." : "", "\"");
}

absl::Status CheckInfo(const MemberInfo& info) {
  if (!IsName(info.id)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "id: expected 1 to ", kMaxNameBytes,
        " letters, digits, '.', '_' or '-', got ", Quote(info.id)));
  }
  if (info.role != MemberRole::kRouter &&
      info.role != MemberRole::kExpertWorker) {
    return absl::InvalidArgumentError(
        absl::StrCat("role: expected router or expert worker, got ",
                     static_cast<int>(info.role)));
  }
  const auto in_address = [](unsigned char c) {
    return absl::ascii_isgraph(c);
  };
  const bool needs_address = info.role == MemberRole::kExpertWorker;
  if ((needs_address && info.address.empty()) ||
      info.address.size() > kMaxAddressBytes ||
      !std::all_of(info.address.begin(), info.address.end(), in_address)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "address: expected ", needs_address ? 1 : 0, " to ", kMaxAddressBytes,
        " printable bytes without spaces, got ", Quote(info.address)));
  }
  if (info.capacity_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "capacity_bytes: expected at least 0, got ", info.capacity_bytes));
  }
  if (info.device != "cpu" && info.device != "cuda") {
    return absl::InvalidArgumentError(
        absl::StrCat("device: expected cpu or cuda, got ", Quote(info.device)));
  }
  return ValidateFailureDomain(info.failure_domain);
}

absl::Status NoLease(absl::string_view id, absl::string_view why) {
  return absl::NotFoundError(
      absl::StrCat("member ", Quote(id), " has no lease: ", why));
}

}  // namespace

absl::string_view MemberRoleName(MemberRole role) {
  return role == MemberRole::kRouter ? "router" : "expert worker";
}

Membership::Membership(Options options) : options_(std::move(options)) {
  CHECK(options_.lease > absl::ZeroDuration());
  CHECK(options_.max_members >= 1);
}

absl::StatusOr<Member> Membership::Join(const MemberInfo& info,
                                        MonotonicTime now) {
  RETURN_IF_ERROR(CheckInfo(info));
  const auto old = members_.find(info.id);
  if (old != members_.end() && now < old->second.lease_expiry) {
    return absl::AlreadyExistsError(absl::StrCat(
        "id: expected one that no member has, got ", Quote(info.id), ", whose ",
        MemberRoleName(old->second.info.role), " at ",
        Quote(old->second.info.address), " holds a lease for ",
        absl::FormatDuration(old->second.lease_expiry - now)));
  }
  if (!options_.allow_mixed_devices) {
    RETURN_IF_ERROR(CheckDevice(info, now));
  }
  if (old == members_.end() &&
      static_cast<int64_t>(members_.size()) >= options_.max_members) {
    return absl::ResourceExhaustedError(
        absl::StrCat("members: expected at most ", options_.max_members,
                     ", got one more, ", Quote(info.id)));
  }
  const Member member = {.info = info,
                         .incarnation = ++last_incarnation_,
                         .leaving = false,
                         .served_bytes = 0,
                         .joined = now,
                         .lease_expiry = now + options_.lease};
  members_[info.id] = member;
  return member;
}

absl::Status Membership::CheckDevice(const MemberInfo& info,
                                     MonotonicTime now) const {
  for (const auto& [id, member] : members_) {
    if (member.info.role == info.role && now < member.lease_expiry &&
        member.info.device != info.device) {
      return absl::FailedPreconditionError(absl::StrCat(
          "device: expected ", member.info.device, ", as that of ", Quote(id),
          ", got ", info.device,
          "; mixed devices have to be allowed (--allow_mixed_devices)"));
    }
  }
  return absl::OkStatus();
}

absl::Status Membership::Renew(absl::string_view id, int64_t incarnation,
                               MonotonicTime now) {
  const auto found = members_.find(std::string(id));
  if (found == members_.end()) {
    return NoLease(id, "it never joined, left or expired");
  }
  Member& member = found->second;
  if (member.incarnation != incarnation) {
    return NoLease(id, absl::StrCat("expected incarnation ", member.incarnation,
                                    ", got ", incarnation));
  }
  if (now >= member.lease_expiry) {
    return NoLease(
        id,
        absl::StrCat("it expired ",
                     absl::FormatDuration(now - member.lease_expiry), " ago"));
  }
  member.lease_expiry = std::max(member.lease_expiry, now + options_.lease);
  return absl::OkStatus();
}

bool Membership::SetLeaving(absl::string_view id, int64_t incarnation) {
  const auto found = members_.find(std::string(id));
  return found != members_.end() && found->second.incarnation == incarnation &&
         !std::exchange(found->second.leaving, true);
}

bool Membership::SetServed(absl::string_view id, int64_t incarnation,
                           int64_t bytes) {
  const auto found = members_.find(std::string(id));
  return found != members_.end() && found->second.incarnation == incarnation &&
         std::exchange(found->second.served_bytes, bytes) != bytes;
}

absl::Status Membership::Leave(absl::string_view id, int64_t incarnation) {
  const auto found = members_.find(std::string(id));
  if (found == members_.end()) {
    return NoLease(id, "it never joined, left or expired");
  }
  if (found->second.incarnation != incarnation) {
    return NoLease(
        id, absl::StrCat("expected incarnation ", found->second.incarnation,
                         ", got ", incarnation));
  }
  members_.erase(found);
  return absl::OkStatus();
}

std::vector<Member> Membership::Expire(MonotonicTime now) {
  std::vector<Member> expired;
  std::erase_if(members_, [&](const auto& entry) {
    if (now < entry.second.lease_expiry) return false;
    expired.push_back(entry.second);
    return true;
  });
  return expired;
}

MonotonicTime Membership::NextExpiry() const {
  MonotonicTime next = MonotonicTime::InfiniteFuture();
  for (const auto& [id, member] : members_) {
    next = std::min(next, member.lease_expiry);
  }
  return next;
}

std::vector<Member> Membership::List(std::optional<MemberRole> role) const {
  std::vector<Member> list;
  for (const auto& [id, member] : members_) {
    if (!role.has_value() || member.info.role == *role) list.push_back(member);
  }
  return list;
}

const Member* Membership::Find(absl::string_view id) const {
  const auto found = members_.find(std::string(id));
  return found == members_.end() ? nullptr : &found->second;
}

}  // namespace gshard
