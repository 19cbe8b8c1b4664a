#include "services/checkpoint/checkpoint.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/checkpoint/file.h"
#include "services/checkpoint/sha256.h"

namespace gshard {
namespace {

constexpr absl::string_view kShardSuffix = ".safetensors";
constexpr absl::string_view kPartialSuffix = ".partial";
constexpr absl::string_view kStepPrefix = "step-";
constexpr uint64_t kMaxTokenizerBytes = uint64_t{1} << 28;

// The step of a directory "step-00001200", or -1.
int64_t StepOf(absl::string_view name) {
  int64_t step = -1;
  if (!absl::ConsumePrefix(&name, kStepPrefix) ||
      !std::all_of(name.begin(), name.end(),
                   [](char c) { return c >= '0' && c <= '9'; }) ||
      !absl::SimpleAtoi(name, &step)) {
    return -1;
  }
  return step;
}

absl::Status CheckStep(int64_t step) {
  if (step >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("expected step >= 0, got ", step));
}

absl::Status CheckNotCommitted(const std::string& root, int64_t step) {
  if (!IsDirectory(CheckpointPath(root, step))) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(
      "there is a checkpoint ", CheckpointPath(root, step), " already"));
}

// Opens the shards that the manifest names and compares their headers with it.
// `mismatch` is the code for a difference: before the commit a writer's
// mistake, after it damage.
absl::StatusOr<std::map<std::string, std::unique_ptr<SafetensorsReader>>>
OpenShards(const std::string& directory, const Manifest& manifest,
           absl::StatusCode mismatch) {
  std::map<std::string, std::unique_ptr<SafetensorsReader>> shards;
  std::map<std::string, size_t> counts;
  for (const TensorEntry& entry : manifest.tensors) {
    auto& shard = shards[entry.file];
    if (shard == nullptr) {
      auto opened =
          SafetensorsReader::Open(absl::StrCat(directory, "/", entry.file));
      if (absl::IsNotFound(opened.status())) {
        return absl::Status(mismatch, opened.status().message());
      }
      if (!opened.ok()) return opened.status();
      shard = *std::move(opened);
    }
    ++counts[entry.file];
    const auto found = shard->tensors().find(entry.name);
    const std::string where = absl::StrCat("tensor '", entry.name, "' of ",
                                           directory, "/", entry.file);
    if (found == shard->tensors().end()) {
      return absl::Status(mismatch, absl::StrCat(where, " is missing"));
    }
    if (found->second.type != entry.type || found->second.dims != entry.dims) {
      return absl::Status(
          mismatch,
          absl::StrCat(where, ": expected ", TypeString(entry.type, entry.dims),
                       ", got ",
                       TypeString(found->second.type, found->second.dims)));
    }
  }
  for (const auto& [file, shard] : shards) {
    if (shard->tensors().size() != counts[file]) {
      return absl::Status(
          mismatch,
          absl::StrCat(directory, "/", file, ": expected ", counts[file],
                       " tensors, got ", shard->tensors().size()));
    }
  }
  return shards;
}

// What writers that died, or another attempt with other shards, left behind.
absl::Status RemoveStrangers(const std::string& directory,
                             const Manifest& manifest) {
  std::set<std::string> files;
  for (const TensorEntry& entry : manifest.tensors) files.insert(entry.file);
  ASSIGN_OR_RETURN(const auto names, ListDirectory(directory));
  for (const std::string& name : names) {
    if (files.count(name) > 0) continue;
    RETURN_IF_ERROR(RemoveTree(absl::StrCat(directory, "/", name)));
  }
  return absl::OkStatus();
}

// ", 3 missing (a, b, c)", or nothing.
std::string Describe(absl::string_view what,
                     const std::vector<std::string>& names) {
  constexpr size_t kShown = 4;
  if (names.empty()) return "";
  const auto end = names.begin() + std::min(names.size(), kShown);
  return absl::StrCat(", ", names.size(), " ", what, " (",
                      absl::StrJoin(names.begin(), end, ", "),
                      names.size() > kShown ? ", ..." : "", ")");
}

}  // namespace

std::string CheckpointPath(const std::string& root, int64_t step) {
  return absl::StrFormat("%s/%s%08d", root, kStepPrefix, step);
}

std::string PartialCheckpointPath(const std::string& root, int64_t step) {
  return absl::StrCat(CheckpointPath(root, step), kPartialSuffix);
}

absl::StatusOr<std::unique_ptr<CheckpointWriter>> CheckpointWriter::Create(
    const std::string& root, int64_t step, const std::string& shard,
    const std::vector<TensorSpec>& specs) {
  RETURN_IF_ERROR(CheckStep(step));
  const std::string file = absl::StrCat(shard, kShardSuffix);
  RETURN_IF_ERROR(Annotate(CheckFileName(file), "shard"));
  RETURN_IF_ERROR(CheckNotCommitted(root, step));
  const std::string directory = PartialCheckpointPath(root, step);
  RETURN_IF_ERROR(MakeDirectories(directory));
  ASSIGN_OR_RETURN(auto writer,
                   SafetensorsWriter::Create(
                       absl::StrCat(directory, "/", file), specs,
                       {{"format", "gshard"}, {"step", absl::StrCat(step)}}));
  return std::unique_ptr<CheckpointWriter>(
      new CheckpointWriter(file, std::move(writer)));
}

CheckpointWriter::CheckpointWriter(std::string file,
                                   std::unique_ptr<SafetensorsWriter> writer)
    : file_(std::move(file)), writer_(std::move(writer)) {}

absl::Status CheckpointWriter::Write(const std::string& name,
                                     const Tensor& tensor) {
  RETURN_IF_ERROR(writer_->Write(name, tensor));
  entries_.push_back(
      {name, file_, tensor.type(), tensor.dims(), Sha256(tensor)});
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TensorEntry>> CheckpointWriter::Finish() {
  RETURN_IF_ERROR(writer_->Finish());
  return std::move(entries_);
}

absl::StatusOr<std::string> CommitCheckpoint(
    const std::string& root, Manifest manifest, const std::string& tokenizer,
    const std::string& target_tokenizer) {
  RETURN_IF_ERROR(CheckStep(manifest.step));
  RETURN_IF_ERROR(CheckNotCommitted(root, manifest.step));
  manifest.tokenizer_sha256 =
      manifest.tokenizer_file.empty() ? "" : Sha256(tokenizer);
  manifest.target_tokenizer_sha256 =
      manifest.target_tokenizer_file.empty() ? "" : Sha256(target_tokenizer);
  ASSIGN_OR_RETURN(const std::string text, FormatManifest(manifest));
  const std::string directory = PartialCheckpointPath(root, manifest.step);
  RETURN_IF_ERROR(MakeDirectories(directory));
  RETURN_IF_ERROR(
      OpenShards(directory, manifest, absl::StatusCode::kFailedPrecondition)
          .status());
  RETURN_IF_ERROR(RemoveStrangers(directory, manifest));
  if (!manifest.tokenizer_file.empty()) {
    RETURN_IF_ERROR(WriteFileAtomically(
        absl::StrCat(directory, "/", manifest.tokenizer_file), tokenizer));
  }
  if (!manifest.target_tokenizer_file.empty()) {
    RETURN_IF_ERROR(WriteFileAtomically(
        absl::StrCat(directory, "/", manifest.target_tokenizer_file),
        target_tokenizer));
  }
  RETURN_IF_ERROR(
      WriteFileAtomically(absl::StrCat(directory, "/", kManifestFile), text));
  const std::string path = CheckpointPath(root, manifest.step);
  RETURN_IF_ERROR(RenamePath(directory, path));
  return path;
}

absl::Status AbandonCheckpoint(const std::string& root, int64_t step) {
  return RemoveTree(PartialCheckpointPath(root, step));
}

absl::StatusOr<std::vector<std::string>> ListCheckpoints(
    const std::string& root) {
  auto names = ListDirectory(root);
  if (absl::IsNotFound(names.status())) return std::vector<std::string>();
  if (!names.ok()) return names.status();
  std::map<int64_t, std::string, std::greater<int64_t>> by_step;
  for (const std::string& name : *names) {
    const int64_t step = StepOf(name);
    if (step >= 0) by_step[step] = absl::StrCat(root, "/", name);
  }
  std::vector<std::string> paths;
  for (auto& [step, path] : by_step) paths.push_back(std::move(path));
  return paths;
}

absl::StatusOr<std::string> LatestCheckpoint(const std::string& root) {
  ASSIGN_OR_RETURN(const auto paths, ListCheckpoints(root));
  absl::Status first_problem;
  for (const std::string& path : paths) {
    const absl::Status status = CheckpointReader::Open(path).status();
    if (status.ok()) return path;
    LogWarning("checkpoint passed over", {{"path", path}, {"status", status}});
    first_problem.Update(status);
  }
  if (paths.empty()) {
    return absl::NotFoundError(absl::StrCat("no checkpoint in '", root, "'"));
  }
  return absl::DataLossError(
      absl::StrCat("none of ", paths.size(), " checkpoints in '", root,
                   "' can be read; the newest: ", first_problem.message()));
}

absl::Status PruneCheckpoints(const std::string& root, int64_t keep) {
  if (keep < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected to keep >= 1 checkpoints, got ", keep));
  }
  ASSIGN_OR_RETURN(const auto paths, ListCheckpoints(root));
  for (size_t i = keep; i < paths.size(); ++i) {
    const std::string partial = absl::StrCat(paths[i], kPartialSuffix);
    RETURN_IF_ERROR(RemoveTree(partial));
    RETURN_IF_ERROR(RenamePath(paths[i], partial));
    RETURN_IF_ERROR(RemoveTree(partial));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<CheckpointReader>> CheckpointReader::Open(
    const std::string& path) {
  std::unique_ptr<CheckpointReader> reader(new CheckpointReader(path));
  auto text =
      ReadFile(absl::StrCat(path, "/", kManifestFile), kMaxManifestBytes);
  if (absl::IsNotFound(text.status())) {
    return absl::NotFoundError(absl::StrCat("no checkpoint at '", path,
                                            "': it has no ", kManifestFile));
  }
  if (!text.ok()) return text.status();
  auto manifest = ParseManifest(*text);
  if (!manifest.ok()) {
    return Annotate(manifest.status(), absl::StrCat(path, "/", kManifestFile));
  }
  reader->manifest_ = *std::move(manifest);
  ASSIGN_OR_RETURN(reader->shards_, OpenShards(path, reader->manifest_,
                                               absl::StatusCode::kDataLoss));
  return reader;
}

const TensorEntry* CheckpointReader::Find(const std::string& name) const {
  const auto& tensors = manifest_.tensors;
  const auto found = std::lower_bound(
      tensors.begin(), tensors.end(), name,
      [](const TensorEntry& a, const std::string& b) { return a.name < b; });
  return found != tensors.end() && found->name == name ? &*found : nullptr;
}

absl::StatusOr<Tensor> CheckpointReader::Read(const std::string& name) const {
  const TensorEntry* const entry = Find(name);
  if (entry == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("no tensor '", name, "' in checkpoint ", path_));
  }
  ASSIGN_OR_RETURN(Tensor tensor, shards_.at(entry->file)->Read(name));
  if (Sha256(tensor) != entry->sha256) {
    return absl::DataLossError(
        absl::StrCat("tensor '", name, "' of ", path_, "/", entry->file,
                     " is not as it was written: its checksum differs"));
  }
  return tensor;
}

absl::StatusOr<Tensor> CheckpointReader::Read(const TensorSpec& spec) const {
  const TensorEntry* const entry = Find(spec.name);
  if (entry != nullptr &&
      (entry->type != spec.type || entry->dims != spec.dims)) {
    return absl::FailedPreconditionError(
        absl::StrCat("tensor '", spec.name, "' of checkpoint ", path_,
                     ": expected ", TypeString(spec.type, spec.dims), ", got ",
                     TypeString(entry->type, entry->dims)));
  }
  return Read(spec.name);
}

absl::StatusOr<std::string> CheckpointReader::ReadTokenizer() const {
  return ReadTokenizerFile(manifest_.tokenizer_file,
                           manifest_.tokenizer_sha256);
}

absl::StatusOr<std::string> CheckpointReader::ReadTargetTokenizer() const {
  return ReadTokenizerFile(manifest_.target_tokenizer_file,
                           manifest_.target_tokenizer_sha256);
}

absl::StatusOr<std::string> CheckpointReader::ReadTokenizerFile(
    const std::string& file, const std::string& sha256) const {
  if (file.empty()) {
    return absl::NotFoundError(
        absl::StrCat("checkpoint ", path_, " has no such tokenizer"));
  }
  const std::string path = absl::StrCat(path_, "/", file);
  auto bytes = ReadFile(path, kMaxTokenizerBytes);
  if (absl::IsNotFound(bytes.status())) {
    return absl::DataLossError(bytes.status().message());
  }
  if (bytes.ok() && Sha256(*bytes) != sha256) {
    return absl::DataLossError(
        absl::StrCat(path, " is not as it was written: its checksum differs"));
  }
  return bytes;
}

absl::Status CheckpointReader::CheckExactly(
    const std::vector<TensorSpec>& expected) const {
  std::set<std::string> names;
  std::vector<std::string> missing, extra, misshapen;
  for (const TensorSpec& spec : expected) {
    if (!names.insert(spec.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", spec.name, "' is expected twice"));
    }
    const TensorEntry* const entry = Find(spec.name);
    if (entry == nullptr) {
      missing.push_back(spec.name);
    } else if (entry->type != spec.type || entry->dims != spec.dims) {
      misshapen.push_back(absl::StrCat(
          spec.name, ": expected ", TypeString(spec.type, spec.dims), ", got ",
          TypeString(entry->type, entry->dims)));
    }
  }
  for (const TensorEntry& entry : manifest_.tensors) {
    if (names.count(entry.name) == 0) extra.push_back(entry.name);
  }
  if (missing.empty() && extra.empty() && misshapen.empty()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("checkpoint ", path_, " does not fit the model: expected ",
                   expected.size(), " tensors, got ", manifest_.tensors.size(),
                   Describe("missing", missing), Describe("extra", extra),
                   Describe("misshapen", misshapen)));
}

absl::Status CheckpointReader::Verify() const {
  for (const TensorEntry& entry : manifest_.tensors) {
    RETURN_IF_ERROR(Read(entry.name).status());
  }
  if (!manifest_.tokenizer_file.empty()) {
    RETURN_IF_ERROR(ReadTokenizer().status());
  }
  if (manifest_.target_tokenizer_file.empty()) return absl::OkStatus();
  return ReadTargetTokenizer().status();
}

}  // namespace gshard
