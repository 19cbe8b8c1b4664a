// ModelsFile: the models that a file says are to be served. It is looked at
// again and again: what counts is its content, however it came there.

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

  // What is to be served from now on, if the file says something new. A file
  // that is being written is left alone: but for the first time, its content
  // has to have been the same at the look before. Errors, as long as it lasts:
  // the file cannot be read, is not valid, or names what may not be served.
  absl::StatusOr<std::optional<std::vector<FileModel>>> Look();

 private:
  const std::string path_;
  const std::function<absl::Status(std::string*)> admit_;
  std::optional<std::string> seen_;   // at the look before
  std::optional<std::string> taken_;  // what it said last
};

// What to do about models whose names the file has, or had: `before` is what it
// said of them. All others are somebody else's.
struct ModelsChange {
  std::vector<FileModel> serve;     // new ones, and those that have changed
  std::vector<std::string> unload;  // names

  bool operator==(const ModelsChange&) const = default;
};
ModelsChange PlanModels(const std::map<std::string, FileModel>& before,
                        const std::vector<FileModel>& wanted);

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_SERVING_MODELS_FILE_H_
