#include "services/coordinator/serving/models_file.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/config/text_proto.h"

namespace gshard {

absl::StatusOr<std::optional<std::vector<ModelRequest>>> ModelsFile::Look() {
  std::optional<std::vector<ModelRequest>> nothing_new;
  ASSIGN_OR_RETURN(std::string text, ReadTextFile(path_));
  const bool settled = !seen_.has_value() || seen_ == text;
  seen_ = text;
  if (!settled || taken_ == text) return nothing_new;
  absl::StatusOr<std::vector<ModelRequest>> models = ParseModelsFile(text);
  if (!models.ok()) return Annotate(models.status(), path_);
  for (ModelRequest& model : *models) {
    RETURN_IF_ERROR(Annotate(
        admit_(&model.checkpoint),
        absl::StrCat(path_, ": checkpoint of model '", model.name, "'")));
  }
  taken_ = std::move(text);
  return std::optional(*std::move(models));
}

ModelsChange PlanModels(const std::map<std::string, ModelRequest>& before,
                        const std::vector<ModelRequest>& wanted) {
  ModelsChange change;
  std::set<std::string> names;
  for (const ModelRequest& model : wanted) {
    names.insert(model.name);
    const auto found = before.find(model.name);
    if (found == before.end() || found->second != model) {
      change.serve.push_back(model);
    }
  }
  for (const auto& [name, model] : before) {
    if (!names.contains(name)) change.unload.push_back(name);
  }
  return change;
}

}  // namespace gshard
