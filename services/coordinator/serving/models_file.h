// ModelsFile: watches the file of models to serve. It is polled: only its
// content matters, not how it changed.

#ifndef SERVICES_COORDINATOR_SERVING_MODELS_FILE_H_
#define SERVICES_COORDINATOR_SERVING_MODELS_FILE_H_

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/config/models_file.h"

namespace gshard {

// Not thread-safe.
class ModelsFile {
 public:
  // `admit` resolves a checkpoint's path, or says why it may not be served.
  ModelsFile(std::string path, std::function<absl::Status(std::string*)> admit)
      : path_(std::move(path)), admit_(std::move(admit)) {}

  // The new list of models, if it has changed. To skip half-written files, the
  // content must be the same at two consecutive looks, except the first time.
  // Errors, while they persist: the file cannot be read, is not valid, or names
  // a model that may not be served.
  absl::StatusOr<std::optional<std::vector<ModelRequest>>> Look();

 private:
  const std::string path_;
  const std::function<absl::Status(std::string*)> admit_;
  std::optional<std::string> seen_;   // at the previous look
  std::optional<std::string> taken_;  // last accepted content
};

// What to do about models whose names are or were in the file; `before` is its
// previous content. Other models are not touched.
struct ModelsChange {
  std::vector<ModelRequest> serve;  // new ones, and those that have changed
  std::vector<std::string> unload;  // names

  bool operator==(const ModelsChange&) const = default;
};
ModelsChange PlanModels(const std::map<std::string, ModelRequest>& before,
                        const std::vector<ModelRequest>& wanted);

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_SERVING_MODELS_FILE_H_
