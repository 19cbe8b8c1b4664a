// Initial values of parameters: a function of the job's seed and the logical
// tensor's name, so that any process can compute any of them, and any placement
// of the experts starts from the same model.

#ifndef SERVICES_MODEL_INITIALIZER_H_
#define SERVICES_MODEL_INITIALIZER_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace gshard {

enum class InitializerKind {
  kZeros,
  kOnes,
  kNormal,        // mean 0, standard deviation `stddev`
  kUniformFanIn,  // [-sqrt(3 / fan_in), sqrt(3 / fan_in)): variance 1 / fan_in
};

struct Initializer {
  InitializerKind kind = InitializerKind::kZeros;
  double stddev = 0.0;  // for kNormal: >= 0, finite
  int64_t fan_in = 0;   // for kUniformFanIn: inputs per output, >= 1
};

// Fills the logical tensor `name`. Errors: InvalidArgument naming the field.
absl::Status Initialize(const Initializer& initializer, uint64_t seed,
                        absl::string_view name, absl::Span<float> values);

// Name of the logical tensor of one expert of the parameter `name`: "name/7".
// The same name is used in checkpoints.
std::string ExpertTensorName(absl::string_view name, int64_t expert);

}  // namespace gshard

#endif  // SERVICES_MODEL_INITIALIZER_H_
