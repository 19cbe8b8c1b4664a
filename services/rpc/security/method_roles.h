// What callers may do: the role that each method of our services asks for, in
// one table.

#ifndef SERVICES_RPC_SECURITY_METHOD_ROLES_H_
#define SERVICES_RPC_SECURITY_METHOD_ROLES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gshard {

// None implies another.
enum class Role {
  kTranslate,  // translates
  kTrain,      // submits, follows and cancels training jobs
  kAdmin,      // serves and unloads models, by jobs too, lists services
  kExpert,     // is a router or an expert worker: joins, computes, trains
};

// "translate", "train", "admin" or "expert".
absl::string_view RoleName(Role role);
// Errors: InvalidArgument that lists the roles.
absl::StatusOr<Role> ParseRole(absl::string_view name);

using Roles = std::vector<Role>;
const Roles& AllRoles();

struct MethodAccess {
  bool open = false;  // to everybody, known or not
  Roles roles;        // one of these is enough

  // What it does to a cluster, for the audit; empty: nothing to audit.
  absl::string_view act = {};

  // Bytes of a message of the client; 0: what the server takes at most, for
  // members alone. See connection_meter.h.
  int64_t max_message = 0;
  bool one_message = true;  // else the client may send any number
  bool one_answer = true;   // else the call lasts as long as the client likes

  // Who calls it is a router or an expert worker.
  bool for_members() const { return roles == Roles{Role::kExpert}; }
};

// Of "/package.Service/Method"; null: no caller may call it. Open are only
// health checks.
const MethodAccess* FindMethodAccess(absl::string_view method);

// All methods in the table, sorted.
std::vector<std::string> MethodsWithAccess();

}  // namespace gshard

#endif  // SERVICES_RPC_SECURITY_METHOD_ROLES_H_
