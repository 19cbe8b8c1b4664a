#include "services/rpc/security/caller.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "services/base/name.h"
#include "services/base/status_macros.h"
#include "services/config/model_request.h"
#include "services/storage/canonical_path.h"
#include "services/storage/object_path.h"

namespace gshard {
namespace {

constexpr size_t kMaxPatternBytes = 128;

bool IsPattern(absl::string_view text) {
  return !text.empty() && text.size() <= kMaxPatternBytes &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return IsNameCharacter(c) || c == '*'; });
}

// Takes time linear in the length of the name.
bool Matches(absl::string_view pattern, absl::string_view name) {
  const std::vector<absl::string_view> parts = absl::StrSplit(pattern, '*');
  if (parts.size() == 1) return name == pattern;
  if (!absl::ConsumePrefix(&name, parts.front()) ||
      !absl::ConsumeSuffix(&name, parts.back())) {
    return false;
  }
  // Taking the first occurrence of each part is sufficient.
  for (size_t i = 1; i + 1 < parts.size(); ++i) {
    const size_t at = name.find(parts[i]);
    if (at == name.npos) return false;
    name.remove_prefix(at + parts[i].size());
  }
  return true;
}

absl::Status CheckLimit(Role role, absl::string_view limit) {
  const absl::string_view name = RoleName(role);
  switch (role) {
    case Role::kTranslate:
    case Role::kAdmin:
      if (IsPattern(limit)) return absl::OkStatus();
      return absl::InvalidArgumentError(absl::StrCat(
          name, ": expected models behind the colon, 1 to ", kMaxPatternBytes,
          " letters, digits, '.', '_', '-' or '*'"));
    case Role::kTrain:
      if (((!limit.empty() && limit.front() == '/') || IsObjectPath(limit)) &&
          limit.size() <= kMaxPathBytes && limit.find('\0') == limit.npos) {
        return absl::OkStatus();
      }
      return absl::InvalidArgumentError(
          absl::StrCat(name,
                       ": expected an absolute folder, or s3://bucket/path, "
                       "behind the colon"));
    case Role::kExpert:
      break;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": expected no limit, as the role has none"));
}

absl::StatusOr<Grant> ParseGrant(absl::string_view text) {
  const size_t colon = text.find(':');
  ASSIGN_OR_RETURN(const Role role, ParseRole(text.substr(0, colon)));
  if (colon == text.npos) return Grant{role};
  const absl::string_view limit = text.substr(colon + 1);
  RETURN_IF_ERROR(CheckLimit(role, limit));
  return Grant{role, std::string(limit)};
}

std::string RoleNames(const Roles& roles) {
  return absl::StrJoin(roles, " or ", [](std::string* out, Role role) {
    absl::StrAppend(out, RoleName(role));
  });
}

}  // namespace

absl::StatusOr<Grants> ParseGrants(absl::string_view text) {
  Grants grants;
  for (const absl::string_view word : absl::StrSplit(text, ',')) {
    if (grants.size() == kMaxGrants) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected at most ", kMaxGrants, " roles, got more"));
    }
    ASSIGN_OR_RETURN(Grant grant, ParseGrant(word));
    grants.push_back(std::move(grant));
  }
  return grants;
}

std::string GrantsText(const Grants& grants) {
  return absl::StrJoin(grants, ",", [](std::string* out, const Grant& grant) {
    absl::StrAppend(out, RoleName(grant.role), grant.limit.empty() ? "" : ":",
                    grant.limit);
  });
}

const Grants& AllGrants() {
  static const Grants& all = *[] {
    auto* const grants = new Grants();
    for (const Role role : AllRoles()) grants->push_back({role});
    return grants;
  }();
  return all;
}

absl::Status CheckAccess(const Caller& caller, absl::string_view method) {
  const MethodAccess* const access = FindMethodAccess(method);
  if (access == nullptr) {
    return absl::UnimplementedError("there is no such method");
  }
  if (access->open) return absl::OkStatus();
  for (const Grant& grant : caller.grants) {
    if (std::find(access->roles.begin(), access->roles.end(), grant.role) !=
        access->roles.end()) {
      return absl::OkStatus();
    }
  }
  return absl::PermissionDeniedError(
      absl::StrCat("the method needs the role ", RoleNames(access->roles),
                   ", which caller '", caller.name, "' does not have"));
}

bool MayUseModel(const Caller& caller, Role role, absl::string_view model) {
  const std::string name = ModelNameOf(model);
  return std::any_of(
      caller.grants.begin(), caller.grants.end(), [&](const Grant& grant) {
        return grant.role == role &&
               (grant.limit.empty() || Matches(grant.limit, name));
      });
}

absl::Status CheckModel(const Caller& caller, Role role,
                        absl::string_view model) {
  if (MayUseModel(caller, role, model)) return absl::OkStatus();
  const std::string name = ModelNameOf(model);
  return absl::PermissionDeniedError(absl::StrCat(
      "model '", absl::CHexEscape(name.substr(0, kMaxPatternBytes)),
      "' needs the role ", RoleName(role),
      " for models of that name, which caller '", caller.name,
      "' does not have"));
}

bool MayTrainIn(const Caller& caller, absl::string_view path) {
  return std::any_of(
      caller.grants.begin(), caller.grants.end(), [&](const Grant& grant) {
        return grant.role == Role::kTrain &&
               (grant.limit.empty() || IsWithin(path, grant.limit));
      });
}

bool IsLimited(const Caller& caller) {
  return std::any_of(caller.grants.begin(), caller.grants.end(),
                     [](const Grant& grant) { return !grant.limit.empty(); });
}

}  // namespace gshard
