// ModelAccess: a router's models as visible to one caller.

#ifndef ROUTER_MODELS_MODEL_ACCESS_H_
#define ROUTER_MODELS_MODEL_ACCESS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "router/models/model_table.h"
#include "services/rpc/security/caller.h"

namespace gshard {

// Thread-safe.
class ModelAccess {
 public:
  // `table` is not owned. `role` is the one that lets the caller use models.
  ModelAccess(const ModelTable* table, Caller caller, Role role);

  // As ModelTable::Find, naming the field "model". Errors: also
  // PermissionDenied for a name that the caller may not use, whether the model
  // exists or not. A limited caller sees no other names.
  absl::StatusOr<std::shared_ptr<TranslationModel>> Find(
      const std::string& name) const;

  // Those of ModelTable::List() that the caller may use. Errors: its.
  absl::StatusOr<std::vector<ModelTable::Listed>> List() const;

 private:
  const ModelTable* const table_;
  const Caller caller_;
  const Role role_;
};

}  // namespace gshard

#endif  // ROUTER_MODELS_MODEL_ACCESS_H_
