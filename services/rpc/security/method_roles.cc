#include "services/rpc/security/method_roles.h"

#include <map>

#include "absl/strings/str_cat.h"

namespace gshard {
namespace {

using enum Role;

// Maximum bytes of a client's message.
constexpr int64_t kHealth = 4 << 10;
constexpr int64_t kControl = 64 << 10;
constexpr int64_t kConfig = 1 << 20;  // as for text protos
constexpr int64_t kText = 4 << 20;    // as routers accept

const std::map<std::string, MethodAccess, std::less<>>& Table() {
  static const auto& table =
      *new const std::map<std::string, MethodAccess, std::less<>>{
          {"/gshard.v1.TranslationService/Translate",
           {.roles = {kTranslate}, .max_message = kText}},
          {"/gshard.v1.TranslationService/TranslateStream",
           {.roles = {kTranslate}, .max_message = kText, .one_message = false}},
          {"/gshard.v1.TranslationService/ListModels",
           {.roles = {kTranslate}, .max_message = kControl}},
          // Disabled unless --enable_debug_calls.
          {"/gshard.v1.TranslationService/ExplainRouting",
           {.roles = {kAdmin}, .max_message = kText}},

          {"/gshard.v1.ExpertWorkerService/Run",
           {.roles = {kExpert}, .one_message = false}},
          {"/gshard.v1.ExpertWorkerService/ReplicateGradients",
           {.roles = {kExpert}, .one_message = false}},

          {"/gshard.v1.CoordinatorService/Join",
           {.roles = {kExpert}, .one_message = false}},
          {"/gshard.v1.CoordinatorService/PushGradients",
           {.roles = {kExpert}, .one_message = false}},
          {"/gshard.v1.CoordinatorService/PullParameters",
           {.roles = {kExpert}}},
          {"/gshard.v1.CoordinatorService/SubmitJob",
           {.roles = {kTrain}, .act = "submit", .max_message = kConfig}},
          {"/gshard.v1.CoordinatorService/WatchJob",
           {.roles = {kTrain}, .max_message = kControl}},
          {"/gshard.v1.CoordinatorService/CancelJob",
           {.roles = {kTrain}, .act = "cancel", .max_message = kControl}},
          {"/gshard.v1.CoordinatorService/ListJobs",
           {.roles = {kTrain}, .max_message = kControl}},
          {"/gshard.v1.CoordinatorService/LoadModel",
           {.roles = {kAdmin}, .act = "load", .max_message = kControl}},
          {"/gshard.v1.CoordinatorService/UnloadModel",
           {.roles = {kAdmin}, .act = "unload", .max_message = kControl}},
          // Tells clients the addresses of the routers.
          {"/gshard.v1.CoordinatorService/Describe",
           {.roles = {kTranslate, kTrain, kAdmin, kExpert},
            .max_message = kControl}},

          // Health probes of orchestrators have no credentials.
          {"/grpc.health.v1.Health/Check",
           {.open = true, .roles = {}, .max_message = kHealth}},
          {"/grpc.health.v1.Health/Watch",
           {.open = true,
            .roles = {},
            .max_message = kHealth,
            .one_answer = false}},
          // Disabled unless --reflection.
          {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
           {.roles = {kAdmin}, .max_message = kControl, .one_message = false}},
      };
  return table;
}

}  // namespace

absl::string_view RoleName(Role role) {
  switch (role) {
    case kTranslate:
      return "translate";
    case kTrain:
      return "train";
    case kAdmin:
      return "admin";
    case kExpert:
      return "expert";
  }
  return "";
}

absl::StatusOr<Role> ParseRole(absl::string_view name) {
  for (const Role role : AllRoles()) {
    if (RoleName(role) == name) return role;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "role: expected translate, train, admin or expert, got '", name, "'"));
}

const Roles& AllRoles() {
  static const Roles& all = *new Roles{kTranslate, kTrain, kAdmin, kExpert};
  return all;
}

const MethodAccess* FindMethodAccess(absl::string_view method) {
  const auto found =
      Table().find(std::string_view(method.data(), method.size()));
  return found == Table().end() ? nullptr : &found->second;
}

std::vector<std::string> MethodsWithAccess() {
  std::vector<std::string> methods;
  for (const auto& [method, access] : Table()) methods.push_back(method);
  return methods;
}

}  // namespace gshard
