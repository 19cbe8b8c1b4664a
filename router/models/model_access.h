// ModelAccess: the models of a router, as one caller may use them.

#ifndef ROUTER_MODELS_MODEL_ACCESS_H_
#define ROUTER_MODELS_MODEL_ACCESS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "router/models/model_table.h"
#include "services/rpc/security/caller.h"

namespace gshard {

// Thread-safe.
class ModelAccess {
 public:
  // `table` is not owned. By `role` the caller may use them.
  ModelAccess(const ModelTable* table, Caller caller, Role role);

  // As ModelTable::Find, naming the field "model". Errors: also
  // PermissionDenied for a name that is not the caller's, be there such a model
  // or not. To a caller with limits no others are listed.
  absl::StatusOr<std::shared_ptr<TranslationModel>> Find(
      const std::string& name) const;

 private:
  const ModelTable* const table_;
  const Caller caller_;
  const Role role_;
};

}  // namespace gshard

#endif  // ROUTER_MODELS_MODEL_ACCESS_H_
