// Caller: the identity and the rights of a caller, which are roles, each
// possibly limited to models or to a folder. All decisions are pure functions.
// The guard checks the method; handlers check the models and paths of a
// request.

#ifndef SERVICES_RPC_SECURITY_CALLER_H_
#define SERVICES_RPC_SECURITY_CALLER_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/rpc/security/method_roles.h"

namespace gshard {

// A role and its limit.
struct Grant {
  Role role;

  // Empty: no limit. For kTranslate and kAdmin: a pattern of model names, in
  // which '*' matches any characters. For kTrain: an absolute folder that must
  // contain all paths of a job.
  std::string limit = {};

  bool operator==(const Grant&) const = default;
};
using Grants = std::vector<Grant>;

inline constexpr size_t kMaxGrants = 64;  // of one caller

// Parses "translate", "translate:titles-*" or "train:/data/team-a", or several
// of these separated by commas. Errors: InvalidArgument.
absl::StatusOr<Grants> ParseGrants(absl::string_view text);
std::string GrantsText(const Grants& grants);

// All roles, without limits.
const Grants& AllGrants();

// The name of all unknown callers.
inline constexpr char kAnonymous[] = "anonymous";

struct Caller {
  std::string name;  // for logs and limits; kAnonymous if unknown
  Grants grants;

  bool operator==(const Caller&) const = default;
};

// Checks the caller's roles for a method, regardless of their limits. Errors:
// PermissionDenied, naming the method's roles, if the caller has none of them;
// Unimplemented if nobody may call `method`.
absl::Status CheckAccess(const Caller& caller, absl::string_view method);

// Whether the caller has `role` for the model "name" or "name@version", which
// need not exist.
bool MayUseModel(const Caller& caller, Role role, absl::string_view model);
// Errors: PermissionDenied, naming the missing right.
absl::Status CheckModel(const Caller& caller, Role role,
                        absl::string_view model);

// Whether a job of the caller may name `path`. REQUIRES: `path` and the
// caller's limits are canonical; see CanonicalPath().
bool MayTrainIn(const Caller& caller, absl::string_view path);

// Whether any role of the caller is limited.
bool IsLimited(const Caller& caller);

}  // namespace gshard

#endif  // SERVICES_RPC_SECURITY_CALLER_H_
