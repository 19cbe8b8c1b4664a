#include "services/checkpoint/checkpoint.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "services/checkpoint/sha256.h"

namespace gshard {
namespace {

constexpr absl::string_view kShardSuffix = ".safetensors";

absl::Status CheckStep(int64_t step) {
  if (step >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("expected step >= 0, got ", step));
}

absl::Status CheckNotCommitted(const std::string& root, int64_t step) {
  const std::string path = CheckpointPath(root, step);
  ASSIGN_OR_RETURN(const bool is_committed,
                   Storage::Of(root).IsCommitted(path, kManifestFile));
  if (!is_committed) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat("there is a checkpoint ", path, " already"));
}

// Removes files of dead writers, or of another attempt with other shards.
absl::Status RemoveStrangers(const std::string& directory,
                             const Manifest& manifest, FaultPoints* faults) {
  std::set<std::string> files;
  for (const TensorEntry& entry : manifest.tensors) files.insert(entry.file);
  const Storage& storage = Storage::Of(directory);
  ASSIGN_OR_RETURN(const auto names, storage.List(directory));
  for (const std::string& name : names) {
    if (files.count(name) > 0) continue;
    RETURN_IF_ERROR(storage.Remove(absl::StrCat(directory, "/", name), faults));
  }
  return absl::OkStatus();
}

// Removes remains of the shard `file` from earlier attempts, which may be what
// fills the disk.
absl::Status RemoveShard(const std::string& directory, const std::string& file,
                         FaultPoints* faults) {
  const Storage& storage = Storage::Of(directory);
  const auto names = storage.List(directory);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  RETURN_IF_ERROR(names.status());
  for (const std::string& name : *names) {
    if (name != file && !absl::StartsWith(name, file + ".")) continue;
    RETURN_IF_ERROR(storage.Remove(absl::StrCat(directory, "/", name), faults));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadTokenizerFile(const InputFile* file,
                                              const std::string& sha256,
                                              const std::string& checkpoint) {
  if (file == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("checkpoint ", checkpoint, " has no such tokenizer"));
  }
  if (file->size() > kMaxTokenizerBytes) {
    return absl::DataLossError(absl::StrCat(file->path(), ": expected at most ",
                                            kMaxTokenizerBytes, " bytes, got ",
                                            file->size()));
  }
  std::string bytes(file->size(), '\0');
  RETURN_IF_ERROR(file->ReadAt(0, bytes.data(), bytes.size()));
  if (Sha256(bytes) != sha256) {
    return absl::DataLossError(
        absl::StrCat("tokenizer ", file->path(),
                     " is not as it was written: its checksum differs"));
  }
  return bytes;
}

// Fills in the manifest's fields of a tokenizer to be written.
void NameTokenizer(const Storage& storage, const std::string& bytes,
                   std::string* file, std::string* sha256) {
  if (!file->empty()) *file = storage.NameInDraft(*file);
  *sha256 = file->empty() ? "" : Sha256(bytes);
}

// Null for an empty `name`.
absl::StatusOr<std::unique_ptr<InputFile>> OpenTokenizer(
    const std::string& directory, const std::string& name) {
  if (name.empty()) return nullptr;
  auto file = InputFile::Open(absl::StrCat(directory, "/", name));
  if (!absl::IsNotFound(file.status())) return file;
  return absl::DataLossError(
      absl::StrCat("tokenizer: ", file.status().message()));
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

absl::StatusOr<std::unique_ptr<CheckpointWriter>> CheckpointWriter::Create(
    const std::string& root, int64_t step, const std::string& shard,
    const std::vector<TensorSpec>& specs, FaultPoints* faults) {
  RETURN_IF_ERROR(CheckStep(step));
  const Storage& storage = Storage::Of(root);
  const std::string file =
      storage.NameInDraft(absl::StrCat(shard, kShardSuffix));
  RETURN_IF_ERROR(Annotate(CheckFileName(file), "shard"));
  RETURN_IF_ERROR(CheckNotCommitted(root, step));
  const std::string directory = PartialCheckpointPath(root, step);
  RETURN_IF_ERROR(storage.MakeFolder(directory, faults));
  RETURN_IF_ERROR(RemoveShard(directory, file, faults));
  ASSIGN_OR_RETURN(auto writer, SafetensorsWriter::Create(
                                    absl::StrCat(directory, "/", file), specs,
                                    ShardMetadata(step), faults));
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
    const std::string& target_tokenizer, FaultPoints* faults) {
  RETURN_IF_ERROR(CheckStep(manifest.step));
  RETURN_IF_ERROR(CheckNotCommitted(root, manifest.step));
  const Storage& storage = Storage::Of(root);
  NameTokenizer(storage, tokenizer, &manifest.tokenizer_file,
                &manifest.tokenizer_sha256);
  NameTokenizer(storage, target_tokenizer, &manifest.target_tokenizer_file,
                &manifest.target_tokenizer_sha256);
  ASSIGN_OR_RETURN(const std::string text, FormatManifest(manifest));
  const std::string path = CheckpointPath(root, manifest.step);
  const std::string directory = PartialCheckpointPath(root, manifest.step);
  RETURN_IF_ERROR(storage.MakeFolder(directory, faults));
  RETURN_IF_ERROR(
      OpenShards(directory, manifest, absl::StatusCode::kFailedPrecondition)
          .status());
  RETURN_IF_ERROR(RemoveStrangers(directory, manifest, faults));
  if (!manifest.tokenizer_file.empty()) {
    RETURN_IF_ERROR(
        storage.Write(absl::StrCat(directory, "/", manifest.tokenizer_file),
                      tokenizer, faults));
  }
  if (!manifest.target_tokenizer_file.empty()) {
    RETURN_IF_ERROR(storage.Write(
        absl::StrCat(directory, "/", manifest.target_tokenizer_file),
        target_tokenizer, faults));
  }
  RETURN_IF_ERROR(storage.Commit(path, kManifestFile, text, faults));
  const absl::Status cleared = RemoveLeftovers(root, manifest.step, faults);
  if (!cleared.ok()) {
    LogWarning("leftovers of checkpoints stay", {{"status", cleared}});
  }
  return path;
}

absl::Status AbandonCheckpoint(const std::string& root, int64_t step,
                               FaultPoints* faults) {
  return Storage::Of(root).RemoveDraft(CheckpointPath(root, step),
                                       kManifestFile, faults);
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
  const absl::Status opened = reader->OpenFiles();
  if (opened.ok()) return reader;
  if (!InputFile::Open(absl::StrCat(path, "/", kManifestFile)).ok()) {
    return absl::NotFoundError(
        absl::StrCat("checkpoint ", path, " was removed while it was opened"));
  }
  return opened;
}

absl::Status CheckpointReader::OpenFiles() {
  ASSIGN_OR_RETURN(shards_,
                   OpenShards(path_, manifest_, absl::StatusCode::kDataLoss));
  ASSIGN_OR_RETURN(tokenizer_, OpenTokenizer(path_, manifest_.tokenizer_file));
  ASSIGN_OR_RETURN(target_tokenizer_,
                   OpenTokenizer(path_, manifest_.target_tokenizer_file));
  return absl::OkStatus();
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
  return ReadTokenizerFile(tokenizer_.get(), manifest_.tokenizer_sha256, path_);
}

absl::StatusOr<std::string> CheckpointReader::ReadTargetTokenizer() const {
  return ReadTokenizerFile(target_tokenizer_.get(),
                           manifest_.target_tokenizer_sha256, path_);
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

absl::Status CheckpointReader::VerifyTokenizers() const {
  if (!manifest_.tokenizer_file.empty()) {
    RETURN_IF_ERROR(ReadTokenizer().status());
  }
  if (manifest_.target_tokenizer_file.empty()) return absl::OkStatus();
  return ReadTargetTokenizer().status();
}

absl::Status CheckpointReader::Verify(std::stop_token stop) const {
  for (const TensorEntry& entry : manifest_.tensors) {
    if (stop.stop_requested()) {
      return absl::CancelledError("told to stop before all was verified");
    }
    RETURN_IF_ERROR(Read(entry.name).status());
  }
  return VerifyTokenizers();
}

}  // namespace gshard
