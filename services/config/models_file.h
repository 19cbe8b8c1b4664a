// Parses the file that lists the models to serve:
// proto/gshard/v1/models_file.proto documents it.

#ifndef SERVICES_CONFIG_MODELS_FILE_H_
#define SERVICES_CONFIG_MODELS_FILE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/config/model_config.h"

namespace gshard {

inline constexpr size_t kMaxFileModels = 1024;

struct FileModel {
  std::string name;
  std::string checkpoint;
  std::string version = {};  // empty: the checkpoint's step
  int64_t replicas = 0;      // 0: the default
  std::optional<ComputeType> weights = std::nullopt;  // none: the model's own

  bool operator==(const FileModel&) const = default;
};

// Errors: InvalidArgument, with the position in the text, or the field.
absl::StatusOr<std::vector<FileModel>> ParseModelsFile(absl::string_view text);

}  // namespace gshard

#endif  // SERVICES_CONFIG_MODELS_FILE_H_
