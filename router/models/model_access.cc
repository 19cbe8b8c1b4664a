#include "router/models/model_access.h"

#include <utility>

#include "services/base/status_macros.h"

namespace gshard {

ModelAccess::ModelAccess(const ModelTable* table, Caller caller, Role role)
    : table_(table), caller_(std::move(caller)), role_(role) {}

absl::StatusOr<std::shared_ptr<TranslationModel>> ModelAccess::Find(
    const std::string& name) const {
  if (!name.empty()) RETURN_IF_ERROR(CheckModel(caller_, role_, name));
  auto model = table_->Find(name);
  // The only model may not be visible to the caller.
  if (model.ok()) {
    RETURN_IF_ERROR(CheckModel(caller_, role_, (*model)->id()));
    return model;
  }
  if (!IsLimited(caller_) || absl::IsUnavailable(model.status())) {
    return Annotate(model.status(), "model");
  }
  return absl::Status(model.status().code(),
                      name.empty() ? "model: expected the name of one, got none"
                                   : "model: it is not loaded on this router");
}

}  // namespace gshard
