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

absl::StatusOr<std::vector<ModelTable::Listed>> ModelAccess::List() const {
  ASSIGN_OR_RETURN(std::vector<ModelTable::Listed> models, table_->List());
  std::erase_if(models, [this](const ModelTable::Listed& listed) {
    return !CheckModel(caller_, role_, listed.model->id()).ok();
  });
  return models;
}

}  // namespace gshard
