// JSON from untrusted files: nlohmann's parser with additional checks.

#ifndef SERVICES_CHECKPOINT_JSON_TEXT_H_
#define SERVICES_CHECKPOINT_JSON_TEXT_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gshard {

struct JsonLimits {
  int max_depth = 8;
  int64_t max_values = 1 << 20;  // objects, arrays, strings, numbers, ...
};

// Parses `text` as one object. Errors: DataLoss if `text` is not one JSON
// object, has a duplicate key in an object, or exceeds the limits.
absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text,
                                               const JsonLimits& limits);

// With keys sorted, on one line. REQUIRES: all strings are UTF-8.
std::string FormatJson(const nlohmann::json& value);

// A string member. Errors: DataLoss naming the key if it is missing or not a
// string.
absl::StatusOr<std::string> JsonString(const nlohmann::json& object,
                                       const std::string& key);

// An integer member >= 0. Errors: DataLoss likewise.
absl::StatusOr<int64_t> JsonCount(const nlohmann::json& object,
                                  const std::string& key);

}  // namespace gshard

#endif  // SERVICES_CHECKPOINT_JSON_TEXT_H_
