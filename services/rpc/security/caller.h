// Caller: the identity and the rights of a caller: roles, each of which may be
// limited to models or to a folder. All decisions are pure functions; the guard
// asks for the method, handlers for the models and paths of a request.

#ifndef SERVICES_RPC_SECURITY_CALLER_H_
#define SERVICES_RPC_SECURITY_CALLER_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/rpc/security/method_roles.h"

namespace gshard {

// A role and what it is limited to.
struct Grant {
  Role role;

  // Empty: to nothing. Of kTranslate and kAdmin the models whose names match,
  // where a '*' stands for any characters; of kTrain an absolute folder, where
  // everything that a job names has to lie.
  std::string limit = {};

  bool operator==(const Grant&) const = default;
};
using Grants = std::vector<Grant>;

inline constexpr size_t kMaxGrants = 64;  // of a caller

// "translate", "translate:titles-*", "train:/data/team-a", with commas between
// several. Errors: InvalidArgument.
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

// Errors: PermissionDenied with the method's roles if the caller has none of
// them, whatever it is limited to; Unimplemented if nobody may call `method`.
absl::Status CheckAccess(const Caller& caller, absl::string_view method);

// Whether the caller has `role` for a model, by "name" or "name@version", be
// there one or not.
bool MayUseModel(const Caller& caller, Role role, absl::string_view model);
// Errors: PermissionDenied with what is missing.
absl::Status CheckModel(const Caller& caller, Role role,
                        absl::string_view model);

// Whether a job of the caller may name `path`. It and the limits of `caller`
// are canonical; see CanonicalPath().
bool MayTrainIn(const Caller& caller, absl::string_view path);

// Some role of the caller is limited.
bool IsLimited(const Caller& caller);

}  // namespace gshard

#endif  // SERVICES_RPC_SECURITY_CALLER_H_
