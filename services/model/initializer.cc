#include "services/model/initializer.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "services/base/random.h"

namespace gshard {

absl::Status Initialize(const Initializer& initializer, uint64_t seed,
                        absl::string_view name, absl::Span<float> values) {
  const uint64_t key = FoldIn(seed, name);
  const auto error = [&](absl::string_view field, absl::string_view range,
                         auto value) {
    return absl::InvalidArgumentError(
        absl::StrCat("first values of '", name, "': ", field, " must be ",
                     range, ", got ", value));
  };
  switch (initializer.kind) {
    case InitializerKind::kZeros:
      std::fill(values.begin(), values.end(), 0.0f);
      return absl::OkStatus();
    case InitializerKind::kOnes:
      std::fill(values.begin(), values.end(), 1.0f);
      return absl::OkStatus();
    case InitializerKind::kNormal: {
      if (!(initializer.stddev >= 0) || !std::isfinite(initializer.stddev)) {
        return error("stddev", ">= 0 and finite", initializer.stddev);
      }
      const float stddev = static_cast<float>(initializer.stddev);
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = stddev * RandomNormal(key, i);
      }
      return absl::OkStatus();
    }
    case InitializerKind::kUniformFanIn: {
      if (initializer.fan_in < 1) {
        return error("fan_in", ">= 1", initializer.fan_in);
      }
      const float limit = static_cast<float>(
          std::sqrt(3.0 / static_cast<double>(initializer.fan_in)));
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = limit * (2.0f * RandomUniform(key, i) - 1.0f);
      }
      return absl::OkStatus();
    }
  }
  return error("kind", "a known one", static_cast<int>(initializer.kind));
}

std::string ExpertTensorName(absl::string_view name, int64_t expert) {
  return absl::StrCat(name, "/", expert);
}

}  // namespace gshard
