#include "services/rpc/method_roles.h"

#include <map>

#include "absl/strings/str_cat.h"

namespace gshard {
namespace {

using enum Role;

const std::map<std::string, MethodAccess, std::less<>>& Table() {
  static const auto& table =
      *new const std::map<std::string, MethodAccess, std::less<>>{
          {"/gshard.v1.TranslationService/Translate", {.roles = {kTranslate}}},
          {"/gshard.v1.TranslationService/TranslateStream",
           {.roles = {kTranslate}}},
          // Off unless --enable_debug_calls.
          {"/gshard.v1.TranslationService/ExplainRouting", {.roles = {kAdmin}}},

          {"/gshard.v1.ExpertWorkerService/Run", {.roles = {kExpert}}},
          {"/gshard.v1.ExpertWorkerService/ReplicateGradients",
           {.roles = {kExpert}}},

          {"/gshard.v1.CoordinatorService/Join", {.roles = {kExpert}}},
          {"/gshard.v1.CoordinatorService/PushGradients", {.roles = {kExpert}}},
          {"/gshard.v1.CoordinatorService/PullParameters",
           {.roles = {kExpert}}},
          {"/gshard.v1.CoordinatorService/SubmitJob",
           {.roles = {kTrain}, .act = "submit"}},
          {"/gshard.v1.CoordinatorService/WatchJob", {.roles = {kTrain}}},
          {"/gshard.v1.CoordinatorService/CancelJob",
           {.roles = {kTrain}, .act = "cancel"}},
          {"/gshard.v1.CoordinatorService/ListJobs", {.roles = {kTrain}}},
          {"/gshard.v1.CoordinatorService/LoadModel",
           {.roles = {kAdmin}, .act = "load"}},
          {"/gshard.v1.CoordinatorService/UnloadModel",
           {.roles = {kAdmin}, .act = "unload"}},
          // Tells clients where the routers are.
          {"/gshard.v1.CoordinatorService/Describe",
           {.roles = {kTranslate, kTrain, kAdmin, kExpert}}},

          // Probes of orchestrators have no credentials.
          {"/grpc.health.v1.Health/Check", {.open = true, .roles = {}}},
          {"/grpc.health.v1.Health/Watch", {.open = true, .roles = {}}},
          // Off unless --reflection.
          {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
           {.roles = {kAdmin}}},
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
