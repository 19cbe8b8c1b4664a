#include "services/checkpoint/shards.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/storage/input_file.h"

namespace gshard {
namespace {

// Compares the tensors in the header with the manifest's.
absl::Status CompareTensors(const std::string& path,
                            const std::vector<TensorSpec>& specs,
                            const SafetensorsReader& shard,
                            absl::StatusCode mismatch) {
  for (const TensorSpec& spec : specs) {
    const auto found = shard.tensors().find(spec.name);
    const std::string where = absl::StrCat(path, ": tensor '", spec.name, "'");
    if (found == shard.tensors().end()) {
      return absl::Status(mismatch, absl::StrCat(where, " is missing"));
    }
    if (found->second.type != spec.type || found->second.dims != spec.dims) {
      return absl::Status(
          mismatch,
          absl::StrCat(where, ": expected ", TypeString(spec.type, spec.dims),
                       ", got ",
                       TypeString(found->second.type, found->second.dims)));
    }
  }
  if (shard.tensors().size() == specs.size()) return absl::OkStatus();
  return absl::Status(mismatch,
                      absl::StrCat(path, ": expected ", specs.size(),
                                   " tensors, got ", shard.tensors().size()));
}

// Where the file deviates from the header for `specs`; empty if it does not.
absl::StatusOr<std::string> HeaderDifference(
    const std::string& path, const std::vector<TensorSpec>& specs,
    int64_t step) {
  ASSIGN_OR_RETURN(const SafetensorsHeader expected,
                   MakeSafetensorsHeader(specs, ShardMetadata(step)));
  ASSIGN_OR_RETURN(const auto file, InputFile::Open(path));
  std::string bytes(std::min<uint64_t>(file->size(), expected.bytes.size()),
                    '\0');
  RETURN_IF_ERROR(file->ReadAt(0, bytes.data(), bytes.size()));
  if (bytes == expected.bytes) return "";
  const size_t at =
      std::mismatch(bytes.begin(), bytes.end(), expected.bytes.begin()).first -
      bytes.begin();
  return absl::StrCat("its header is not as it was written, first at byte ", at,
                      " in ", expected.PartAt(at));
}

absl::StatusOr<std::unique_ptr<SafetensorsReader>> OpenShard(
    const std::string& path, const std::vector<TensorSpec>& specs, int64_t step,
    absl::StatusCode mismatch) {
  auto shard = SafetensorsReader::Open(path);
  if (absl::IsNotFound(shard.status())) {
    return absl::Status(mismatch, shard.status().message());
  }
  absl::Status status = shard.status();
  if (status.ok()) status = CompareTensors(path, specs, **shard, mismatch);
  if (!status.ok() && status.code() != absl::StatusCode::kDataLoss) {
    return status;
  }
  ASSIGN_OR_RETURN(const std::string difference,
                   HeaderDifference(path, specs, step));
  if (difference.empty()) {
    RETURN_IF_ERROR(status);
    return shard;
  }
  if (status.ok()) {
    return absl::Status(mismatch, absl::StrCat(path, ": ", difference));
  }
  return absl::Status(status.code(),
                      absl::StrCat(status.message(), "; ", difference));
}

}  // namespace

StringMap ShardMetadata(int64_t step) {
  return {{"format", "gshard"}, {"step", absl::StrCat(step)}};
}

absl::StatusOr<Shards> OpenShards(const std::string& directory,
                                  const Manifest& manifest,
                                  absl::StatusCode mismatch) {
  std::map<std::string, std::vector<TensorSpec>> specs_by_file;
  for (const TensorEntry& entry : manifest.tensors) {
    specs_by_file[entry.file].push_back({entry.name, entry.type, entry.dims});
  }
  Shards shards;
  for (const auto& [file, specs] : specs_by_file) {
    const std::string path = absl::StrCat(directory, "/", file);
    ASSIGN_OR_RETURN(shards[file],
                     OpenShard(path, specs, manifest.step, mismatch));
  }
  return shards;
}

}  // namespace gshard
