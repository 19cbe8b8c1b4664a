// Checks the shard files of a checkpoint against its manifest.

#ifndef SERVICES_CHECKPOINT_SHARDS_H_
#define SERVICES_CHECKPOINT_SHARDS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/checkpoint/manifest.h"
#include "services/checkpoint/safetensors.h"

namespace gshard {

// By file.
using Shards = std::map<std::string, std::unique_ptr<SafetensorsReader>>;

// The metadata of every shard of a checkpoint.
StringMap ShardMetadata(int64_t step);

// Opens the shards that the manifest names. Everything before the elements
// follows from the manifest, and must match to the byte.
//
// Errors: `mismatch` for a difference (a writer's mistake before the commit,
// damage after it); DataLoss for a file that is not a shard; both name the file
// and the tensor or the part of the header; those of file.h.
absl::StatusOr<Shards> OpenShards(const std::string& directory,
                                  const Manifest& manifest,
                                  absl::StatusCode mismatch);

}  // namespace gshard

#endif  // SERVICES_CHECKPOINT_SHARDS_H_
