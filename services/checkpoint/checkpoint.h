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
// under a shard name of its own, and sends the entries that Finish returns to
// the leader, which calls CommitCheckpoint with all of them. All processes must
// see the same file system, or ROOT is s3://bucket/path.
//
// In an object store there is no ".partial": shards and tokenizers, by names
// that no other attempt uses, are in ROOT/step-00001200/ from the start, and
// the manifest, which is created last and only if there is none, makes it a
// checkpoint (services/storage/storage.h).
//
// Durability, on a disk: each file is written under a temporary name, synced,
// renamed, and its directory synced, before anything that refers to it; the
// rename of the directory creates the checkpoint. A process crash, a power loss
// or a full disk at any point leaves a ".partial" directory, or a prefix
// without manifest, which readers ignore and the next attempt at that step
// clears.
//
// Every byte of a checkpoint is checked on its way in: elements and tokenizers
// by SHA-256 (OpenSSL's, which uses the processor's instructions for it; strong
// enough that equal sums mean equal tensors), the manifest by its seal, and the
// shards' headers by comparison with what the manifest makes them.

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

// Writes one process's shard. Not thread-safe.
class CheckpointWriter {
 public:
  // `shard` is a name as CheckFileName takes it, without its ".safetensors".
  // What earlier attempts left of a shard of that name is removed first. For
  // `faults` see fault_points.h; it outlives the writer. Errors: AlreadyExists
  // if the checkpoint is committed already; those of SafetensorsWriter.
  static absl::StatusOr<std::unique_ptr<CheckpointWriter>> Create(
      const std::string& root, int64_t step, const std::string& shard,
      const std::vector<TensorSpec>& specs, FaultPoints* faults = nullptr);

  // In the order that SafetensorsWriter wants. Errors: its own.
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

// Makes the shards of `manifest.step` a checkpoint, and returns its path:
// checks that the shard files hold exactly the tensors of the manifest (headers
// only), removes other files from the directory, writes `tokenizer` under
// manifest.tokenizer_file and `target_tokenizer` under
// manifest.target_tokenizer_file (see Storage::NameInDraft; their checksums are
// filled in here), and commits the directory with the manifest. Then removes
// what dead writers left of earlier steps, so only one checkpoint of a root is
// written at a time.
//
// Errors: AlreadyExists for a tensor in two shards, or if the step is
// committed already; FailedPrecondition if a shard lacks a tensor or has
// another; those of storage.h. After an error there is no checkpoint of the
// step and the call may be repeated; or, if only the last sync failed or the
// last answer was lost, there is all of it.
absl::StatusOr<std::string> CommitCheckpoint(
    const std::string& root, Manifest manifest, const std::string& tokenizer,
    const std::string& target_tokenizer = "", FaultPoints* faults = nullptr);

// Removes what was written of a step that will not be committed.
absl::Status AbandonCheckpoint(const std::string& root, int64_t step,
                               FaultPoints* faults = nullptr);

// Reads a checkpoint. Thread-safe. One that is open can be read to its end even
// if it is removed meanwhile; in an object store it is NotFound from then on.
class CheckpointReader {
 public:
  // Reads the manifest and the headers of all shards, and checks that they
  // agree. Errors: NotFound if there is no checkpoint at `path`; DataLoss if
  // anything of this is missing, added or altered, naming the file and the
  // tensor or field; FailedPrecondition for one of a
  // later version; those of storage.h.
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(
      const std::string& path);

  const Manifest& manifest() const { return manifest_; }
  const std::string& path() const { return path_; }

  // Null if there is no such tensor.
  const TensorEntry* Find(const std::string& name) const;
  bool Has(const std::string& name) const { return Find(name) != nullptr; }

  // Errors: NotFound; DataLoss if the elements are not those that were
  // written.
  absl::StatusOr<Tensor> Read(const std::string& name) const;

  // The same, for a caller that expects `spec`. Errors: also
  // FailedPrecondition if type or shape is another.
  absl::StatusOr<Tensor> Read(const TensorSpec& spec) const;

  // The tokenizers' bytes. Errors: NotFound if the checkpoint has none of the
  // kind; DataLoss.
  absl::StatusOr<std::string> ReadTokenizer() const;
  absl::StatusOr<std::string> ReadTargetTokenizer() const;

  // OK if the checkpoint holds the tensors of `expected` and no others.
  // Errors: FailedPrecondition with the number of missing, extra and
  // misshapen tensors and the first few of each; InvalidArgument if `expected`
  // names one twice.
  absl::Status CheckExactly(const std::vector<TensorSpec>& expected) const;

  // Reads the tokenizers that there are. Errors: those of ReadTokenizer.
  absl::Status VerifyTokenizers() const;
  // Reads everything once, a tensor at a time. Errors: also those of Read;
  // Cancelled if it is told to stop.
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
