// Parses the file that lists the models to serve:
// proto/gshard/v1/models_file.proto documents it.

#ifndef SERVICES_CONFIG_MODELS_FILE_H_
#define SERVICES_CONFIG_MODELS_FILE_H_

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/config/model_request.h"

namespace gshard {

inline constexpr size_t kMaxFileModels = 1024;

// Errors: InvalidArgument, with the position in the text, or the field.
absl::StatusOr<std::vector<ModelRequest>> ParseModelsFile(
    absl::string_view text);

}  // namespace gshard

#endif  // SERVICES_CONFIG_MODELS_FILE_H_
