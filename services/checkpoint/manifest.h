// The table of contents that completes a checkpoint: the file manifest.json,
// written after everything that it names.
//
// It is JSON, one field and one tensor a line, and carries checksums of itself
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

// The key of the metadata under which the language of requests that name none
// is; absent or empty if there is no such language.
inline constexpr char kDefaultLanguageKey[] = "default_language";

// A longer manifest is refused. 2048 experts in 36 layers with their optimizer
// state take about 100 MB.
constexpr uint64_t kMaxManifestBytes = uint64_t{1} << 29;

// One tensor, and the shard file of the checkpoint that holds it.
struct TensorEntry {
  std::string name;
  std::string file;  // in the checkpoint's directory: no path
  ElementType type = ElementType::kFloat32;
  Dims dims;
  std::string sha256;  // of the elements
};

struct Manifest {
  // Optimizer updates that these weights have seen, >= 0.
  int64_t step = 0;

  // The ModelConfig in text form. Opaque here.
  std::string model_config;

  // The tokenizer's file in the checkpoint's directory, and its checksum; both
  // empty for none. Of the source side if there is one for the target, too.
  std::string tokenizer_file;
  std::string tokenizer_sha256;
  std::string target_tokenizer_file;
  std::string target_tokenizer_sha256;

  // The loss on held-out text of these weights, lower is better; none if it was
  // not measured. Finite.
  std::optional<double> validation_loss;

  // Anything else worth keeping, e.g. the seed of the job.
  StringMap metadata;

  // In order of name, each name once.
  std::vector<TensorEntry> tensors;
};

// A file of a checkpoint is named by 1 to 128 letters, digits, '.', '-' and
// '_', not starting with '.', so that no name leaves the directory.
// Errors: InvalidArgument.
absl::Status CheckFileName(absl::string_view name);

// Errors: InvalidArgument naming the field, for a manifest that ParseManifest
// would not take; AlreadyExists for two tensors of one name, naming both files.
absl::Status CheckManifest(const Manifest& manifest);

// Tensors are put in order of name. Errors: those of CheckManifest.
absl::StatusOr<std::string> FormatManifest(const Manifest& manifest);

// Errors: DataLoss for anything but what FormatManifest wrote, naming the field
// or the tensor that is damaged; FailedPrecondition for one of another version.
absl::StatusOr<Manifest> ParseManifest(absl::string_view text);

}  // namespace gshard

#endif  // SERVICES_CHECKPOINT_MANIFEST_H_
