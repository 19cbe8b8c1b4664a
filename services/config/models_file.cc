#include "services/config/models_file.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "proto/gshard/v1/models_file.pb.h"
#include "services/base/status_macros.h"
#include "services/config/fields.h"
#include "services/config/model_config_proto.h"
#include "services/config/text_proto.h"

namespace gshard {
namespace {

template <typename Visitor>
void VisitFields(Visitor& visitor, ModelRequest& model) {
  visitor.Text("name", model.name, TextKind::kName, Presence::kRequired);
  visitor.Text("checkpoint", model.checkpoint, TextKind::kPath,
               Presence::kRequired);
  visitor.Text("version", model.version, TextKind::kName, Presence::kOptional);
  visitor.Integer("replicas", model.replicas, 0, 16);
}

}  // namespace

absl::StatusOr<std::vector<ModelRequest>> ParseModelsFile(
    absl::string_view text) {
  v1::ModelsFile message;
  RETURN_IF_ERROR(ParseTextProto(text, &message));
  const auto count = static_cast<size_t>(message.models_size());
  if (count > kMaxFileModels) {
    return absl::InvalidArgumentError(absl::StrCat(
        "models: expected at most ", kMaxFileModels, ", got ", count));
  }
  std::vector<ModelRequest> models(count);
  std::set<std::string> names;
  for (size_t i = 0; i < count; ++i) {
    FieldReader reader(message.models(static_cast<int>(i)));
    VisitFields(reader, models[i]);
    FieldChecker checker(absl::StrCat("models[", i, "]."));
    VisitFields(checker, models[i]);
    RETURN_IF_ERROR(checker.status());
    const auto weights =
        ComputeTypeFromProto(message.models(static_cast<int>(i)).weights());
    if (!weights.ok()) {
      return Annotate(weights.status(),
                      absl::StrCat("models[", i, "].weights"));
    }
    models[i].weights = *weights;
    if (!names.insert(models[i].name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("models[", i, "].name: expected each name once, got '",
                       models[i].name, "' again"));
    }
  }
  return models;
}

}  // namespace gshard
