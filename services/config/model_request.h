// ModelRequest: a request to serve a model, which is then called
// "name@version".

#ifndef SERVICES_CONFIG_MODEL_REQUEST_H_
#define SERVICES_CONFIG_MODEL_REQUEST_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/config/model_config.h"

namespace gshard {

struct ModelRequest {
  std::string name;
  std::string checkpoint;
  std::string version = {};  // empty: the checkpoint's step
  int64_t replicas = 0;      // 0: the default
  std::optional<ComputeType> weights = std::nullopt;  // none: the model's own

  bool operator==(const ModelRequest&) const = default;
};

// "name" of "name@version".
inline std::string ModelNameOf(absl::string_view id) {
  return std::string(id.substr(0, id.find('@')));
}

// Parses a flag's "NAME=CHECKPOINT". Errors: InvalidArgument.
absl::StatusOr<ModelRequest> ParseModelRequest(absl::string_view text);

}  // namespace gshard

#endif  // SERVICES_CONFIG_MODEL_REQUEST_H_
