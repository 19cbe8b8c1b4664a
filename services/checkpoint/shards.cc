#include "services/checkpoint/shards.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/concurrently.h"
#include "services/base/status_macros.h"
#include "services/storage/input_file.h"

namespace gshard {
namespace {

constexpr size_t kAtATime = 8;  // shards that are opened

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

// Where a file that begins with `bytes` deviates from the header `expected`;
// empty if it does not.
std::string HeaderDifference(absl::string_view bytes,
                             const SafetensorsHeader& expected) {
  if (bytes == expected.bytes) return "";
  const size_t at = std::mismatch(bytes.begin(), bytes.end(),
                                  expected.bytes.begin(), expected.bytes.end())
                        .first -
                    bytes.begin();
  return absl::StrCat("its header is not as it was written, first at byte ", at,
                      " in ", expected.PartAt(at));
}

// Up to `size` bytes of a file that is no shard.
absl::StatusOr<std::string> Beginning(const std::string& path, size_t size) {
  ASSIGN_OR_RETURN(const auto file, InputFile::Open(path));
  std::string bytes(std::min<uint64_t>(file->size(), size), '\0');
  RETURN_IF_ERROR(file->ReadAt(0, bytes.data(), bytes.size()));
  return bytes;
}

absl::StatusOr<std::unique_ptr<SafetensorsReader>> OpenShard(
    const std::string& path, const std::vector<TensorSpec>& specs, int64_t step,
    absl::StatusCode mismatch) {
  ASSIGN_OR_RETURN(const SafetensorsHeader expected,
                   MakeSafetensorsHeader(specs, ShardMetadata(step)));
  auto shard = SafetensorsReader::Open(path, expected.bytes.size());
  if (absl::IsNotFound(shard.status())) {
    return absl::Status(mismatch, shard.status().message());
  }
  absl::Status status = shard.status();
  if (status.ok()) status = CompareTensors(path, specs, **shard, mismatch);
  if (!status.ok() && status.code() != absl::StatusCode::kDataLoss) {
    return status;
  }
  std::string bytes;
  if (shard.ok()) {
    bytes = (*shard)->TakeHeader();
  } else {
    ASSIGN_OR_RETURN(bytes, Beginning(path, expected.bytes.size()));
  }
  const std::string difference = HeaderDifference(bytes, expected);
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
  std::vector<Shards::value_type*> places;
  for (const auto& [file, specs] : specs_by_file) {
    places.push_back(&*shards.emplace(file, nullptr).first);
  }
  RETURN_IF_ERROR(
      RunConcurrently(places.size(), kAtATime, [&](size_t i) -> absl::Status {
        auto& [file, shard] = *places[i];
        ASSIGN_OR_RETURN(
            shard, OpenShard(absl::StrCat(directory, "/", file),
                             specs_by_file.at(file), manifest.step, mismatch));
        return absl::OkStatus();
      }));
  return shards;
}

}  // namespace gshard
