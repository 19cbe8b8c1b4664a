// Checkpoints: written atomically by many processes; read and verified by any
// number.
//
//   ROOT/step-00001200/manifest.json            written last
//                      tokenizer.model
//                      router.safetensors       one shard a writer
//                      worker-0.safetensors ...
//   ROOT/step-00001400.partial/...              being written, or abandoned
//
// A tensor in a checkpoint is a logical one, e.g. one matrix of one expert of
// one layer, so that a checkpoint is independent of the number of processes
// that wrote it.
//
// Writing: every process opens a CheckpointWriter on the same root and step,
// under its own shard name, and sends the entries that Finish returns to the
// leader, which calls CommitCheckpoint with all of them. All processes must see
// the same file system, or ROOT is s3://bucket/path.
//
// In an object store there is no ".partial": shards and tokenizers are written
// to ROOT/step-00001200/ directly, under names unique to the attempt, and the
// manifest, created last and only if absent, makes it a checkpoint
// (services/storage/storage.h).
//
// Durability, on a disk: each file is written under a temporary name, synced,
// renamed, and its directory synced, before anything refers to it; the rename
// of the directory creates the checkpoint. A process crash, a power loss or a
// full disk at any point leaves a ".partial" directory, or a prefix without
// manifest, which readers ignore and the next attempt at that step removes.
//
// Every byte of a checkpoint is checked when read: elements and tokenizers by
// SHA-256 (OpenSSL's, with hardware support; equal digests mean equal tensors),
// the manifest by its seal, and the shards' headers against those that the
// manifest implies.

#ifndef SERVICES_CHECKPOINT_CHECKPOINT_H_
#define SERVICES_CHECKPOINT_CHECKPOINT_H_

#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/checkpoint/manifest.h"
#include "services/checkpoint/safetensors.h"
#include "services/checkpoint/shards.h"
#include "services/checkpoint/tensor_spec.h"
#include "services/storage/storage.h"
#include "services/tensor/tensor.h"

namespace gshard {

// The largest file of a tokenizer.
inline constexpr uint64_t kMaxTokenizerBytes = uint64_t{1} << 28;

// Writes one process's shard. Not thread-safe.
class CheckpointWriter {
 public:
  // `shard` is a name accepted by CheckFileName, without ".safetensors".
  // Remains of that shard from earlier attempts are removed first. For `faults`
  // see fault_points.h; it outlives the writer. Errors: AlreadyExists if the
  // checkpoint is already committed; those of SafetensorsWriter.
  static absl::StatusOr<std::unique_ptr<CheckpointWriter>> Create(
      const std::string& root, int64_t step, const std::string& shard,
      const std::vector<TensorSpec>& specs, FaultPoints* faults = nullptr);

  // In the order that SafetensorsWriter requires. Errors: its own.
  absl::Status Write(const std::string& name, const Tensor& tensor);

  // The entries of the shard, for the leader. Errors: those of
  // SafetensorsWriter.
  absl::StatusOr<std::vector<TensorEntry>> Finish();

 private:
  CheckpointWriter(std::string file, std::unique_ptr<SafetensorsWriter> writer);

  const std::string file_;
  std::unique_ptr<SafetensorsWriter> writer_;
  std::vector<TensorEntry> entries_;
};

// Commits the shards of `manifest.step` as a checkpoint, and returns its path:
// checks that the shard files have exactly the tensors of the manifest (headers
// only), removes other files from the directory, writes `tokenizer` under
// manifest.tokenizer_file and `target_tokenizer` under
// manifest.target_tokenizer_file (see Storage::NameInDraft; their checksums are
// filled in here), and commits the directory with the manifest. Then removes
// remains of earlier steps, so only one checkpoint of a root may be written at
// a time.
//
// Errors: AlreadyExists for a tensor in two shards, or if the step is already
// committed; FailedPrecondition if a shard lacks a tensor or has an extra one;
// those of storage.h. After an error there is no checkpoint of the step and the
// call may be repeated; but if only the last sync failed or the last answer was
// lost, the checkpoint may be complete.
absl::StatusOr<std::string> CommitCheckpoint(
    const std::string& root, Manifest manifest, const std::string& tokenizer,
    const std::string& target_tokenizer = "", FaultPoints* faults = nullptr);

// Removes the files of a step that will not be committed.
absl::Status AbandonCheckpoint(const std::string& root, int64_t step,
                               FaultPoints* faults = nullptr);

// Reads a checkpoint. Thread-safe. An open checkpoint stays readable even if it
// is removed meanwhile; in an object store reads then return NotFound.
class CheckpointReader {
 public:
  // Reads the manifest and the headers of all shards, and checks that they
  // agree. Errors: NotFound if there is no checkpoint at `path`; DataLoss if
  // any of this is missing, extra or altered, naming the file and the tensor or
  // field; FailedPrecondition for a later format version; those of storage.h.
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(
      const std::string& path);

  const Manifest& manifest() const { return manifest_; }
  const std::string& path() const { return path_; }

  // Null if there is no such tensor.
  const TensorEntry* Find(const std::string& name) const;
  bool Has(const std::string& name) const { return Find(name) != nullptr; }

  // Errors: NotFound; DataLoss if the checksum of the elements does not match.
  absl::StatusOr<Tensor> Read(const std::string& name) const;

  // The same, checking against `spec`. Errors: also FailedPrecondition if type
  // or shape differ.
  absl::StatusOr<Tensor> Read(const TensorSpec& spec) const;

  // The tokenizers' bytes. Errors: NotFound if the checkpoint has no such
  // tokenizer; DataLoss.
  absl::StatusOr<std::string> ReadTokenizer() const;
  absl::StatusOr<std::string> ReadTargetTokenizer() const;

  // OK if the checkpoint has exactly the tensors of `expected`. Errors:
  // FailedPrecondition with the number of missing, extra and misshapen tensors
  // and the first few of each; InvalidArgument for duplicates in `expected`.
  absl::Status CheckExactly(const std::vector<TensorSpec>& expected) const;

  // Reads and checks the tokenizers, if any. Errors: those of ReadTokenizer.
  absl::Status VerifyTokenizers() const;
  // Reads and checks everything, a tensor at a time. Errors: also those of
  // Read; Cancelled if stop is requested.
  absl::Status Verify(std::stop_token stop = {}) const;

 private:
  explicit CheckpointReader(std::string path) : path_(std::move(path)) {}

  absl::Status OpenFiles();

  const std::string path_;
  Manifest manifest_;
  Shards shards_;
  std::unique_ptr<InputFile> tokenizer_;  // null for none
  std::unique_ptr<InputFile> target_tokenizer_;
};

}  // namespace gshard

#endif  // SERVICES_CHECKPOINT_CHECKPOINT_H_
