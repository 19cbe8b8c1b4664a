// Access rights: the roles that each method of our services requires, in one
// table.

#ifndef SERVICES_RPC_SECURITY_METHOD_ROLES_H_
#define SERVICES_RPC_SECURITY_METHOD_ROLES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gshard {

// No role implies another.
enum class Role {
  kTranslate,  // translate
  kTrain,      // submit, follow and cancel training jobs
  kAdmin,      // serve (also by jobs) and unload models, list services
  kExpert,     // be a router or expert worker: join, compute, train
};

// "translate", "train", "admin" or "expert".
absl::string_view RoleName(Role role);
// Errors: InvalidArgument that lists the roles.
absl::StatusOr<Role> ParseRole(absl::string_view name);

using Roles = std::vector<Role>;
const Roles& AllRoles();

struct MethodAccess {
  bool open = false;  // to everybody, known or not
  Roles roles;        // any one of these suffices

  // The act's name in the audit log, for methods that change a cluster; else
  // empty.
  absl::string_view act = {};

  // Maximum bytes of a message from the client; 0, for members' methods only:
  // the server's maximum. See connection_meter.h.
  int64_t max_message = 0;
  bool one_message = true;  // else the client may send any number
  bool one_answer = true;   // else the client decides how long the call lasts

  // Whether only routers and expert workers may call the method.
  bool for_members() const { return roles == Roles{Role::kExpert}; }
};

// The entry of "/package.Service/Method"; null if nobody may call it. Only
// health checks are open.
const MethodAccess* FindMethodAccess(absl::string_view method);

// All methods in the table, sorted.
std::vector<std::string> MethodsWithAccess();

}  // namespace gshard

#endif  // SERVICES_RPC_SECURITY_METHOD_ROLES_H_
