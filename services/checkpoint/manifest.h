// The table of contents that completes a checkpoint: the file manifest.json,
// written after everything that it names.
//
// JSON, one field or tensor per line, with checksums of itself
// (sealed_lines.h), so that a flipped bit in a step number or in the model's
// configuration is found, and named, like one in a weight.

#ifndef SERVICES_CHECKPOINT_MANIFEST_H_
#define SERVICES_CHECKPOINT_MANIFEST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/checkpoint/safetensors.h"
#include "services/checkpoint/tensor_spec.h"

namespace gshard {

constexpr absl::string_view kManifestFile = "manifest.json";

// Raised when a reader of the old version would misread the new one.
constexpr int64_t kManifestVersion = 1;

// The metadata key of the default language, for requests without one; absent or
// empty if there is none.
inline constexpr char kDefaultLanguageKey[] = "default_language";

// Longer manifests are refused. 2048 experts in 36 layers with their optimizer
// state take about 100 MB.
constexpr uint64_t kMaxManifestBytes = uint64_t{1} << 29;

// A tensor and its shard file.
struct TensorEntry {
  std::string name;
  std::string file;  // in the checkpoint's directory: no path
  ElementType type = ElementType::kFloat32;
  Dims dims;
  std::string sha256;  // checksum of the elements
};

struct Manifest {
  // Number of optimizer updates of these weights, >= 0.
  int64_t step = 0;

  // The ModelConfig in text form. Opaque here.
  std::string model_config;

  // The tokenizer's file in the checkpoint's directory, and its checksum; both
  // empty for none. The source side's if there is one for the target, too.
  std::string tokenizer_file;
  std::string tokenizer_sha256;
  std::string target_tokenizer_file;
  std::string target_tokenizer_sha256;

  // Validation loss of these weights, lower is better; none if not measured.
  // Finite.
  std::optional<double> validation_loss;

  // Other information, e.g. the job's seed.
  StringMap metadata;

  // Sorted by name, names unique.
  std::vector<TensorEntry> tensors;
};

// File names in a checkpoint have 1 to 128 letters, digits, '.', '-' and '_',
// not starting with '.', so that none leaves the directory. Errors:
// InvalidArgument.
absl::Status CheckFileName(absl::string_view name);

// Errors: InvalidArgument naming the field, for a manifest that ParseManifest
// would refuse; AlreadyExists for two tensors of one name, naming both files.
absl::Status CheckManifest(const Manifest& manifest);

// Sorts tensors by name. Errors: those of CheckManifest.
absl::StatusOr<std::string> FormatManifest(const Manifest& manifest);

// Errors: DataLoss for anything but FormatManifest's output, naming the damaged
// field or tensor; FailedPrecondition for another version.
absl::StatusOr<Manifest> ParseManifest(absl::string_view text);

}  // namespace gshard

#endif  // SERVICES_CHECKPOINT_MANIFEST_H_
