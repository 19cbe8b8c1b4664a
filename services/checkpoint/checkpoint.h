// Checkpoints: written by many processes, whole or not at all; read by any
// number, never wrongly.
//
//   ROOT/step-00001200/manifest.json            written last
//                      tokenizer.model
//                      router.safetensors       one shard a writer
//                      worker-0.safetensors ...
//   ROOT/step-00001400.partial/...              being written, or abandoned
//
// A tensor in a checkpoint is a logical one, e.g. one matrix of one expert of
// one layer, so that a checkpoint says nothing of how many processes wrote it.
//
// Writing: every process opens a CheckpointWriter on the same root and step,
// under a shard name of its own, and sends the entries that Finish returns to
// the leader, which calls CommitCheckpoint with all of them. A process that
// dies at any point before that leaves a ".partial" directory, which no reader
// looks at and the next attempt at that step uses again. All processes must see
// the same file system.

#ifndef SERVICES_CHECKPOINT_CHECKPOINT_H_
#define SERVICES_CHECKPOINT_CHECKPOINT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/checkpoint/manifest.h"
#include "services/checkpoint/safetensors.h"
#include "services/checkpoint/tensor_spec.h"
#include "services/tensor/tensor.h"

namespace gshard {

// ROOT/step-00001200 and ROOT/step-00001200.partial.
std::string CheckpointPath(const std::string& root, int64_t step);
std::string PartialCheckpointPath(const std::string& root, int64_t step);

// Writes one process's shard. Not thread-safe.
class CheckpointWriter {
 public:
  // `shard` is a name as CheckFileName takes it, without its ".safetensors".
  // A shard of that name from an earlier attempt is replaced. Errors:
  // AlreadyExists if the checkpoint is committed already; those of
  // SafetensorsWriter.
  static absl::StatusOr<std::unique_ptr<CheckpointWriter>> Create(
      const std::string& root, int64_t step, const std::string& shard,
      const std::vector<TensorSpec>& specs);

  // In any order. Errors: those of SafetensorsWriter.
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
// manifest.target_tokenizer_file (their checksums are filled in here) and the
// manifest, and renames the directory.
//
// Errors: AlreadyExists for a tensor in two shards, or if the step is
// committed already; FailedPrecondition if a shard lacks a tensor or has
// another; those of file.h. After an error there is no checkpoint of the step
// and the call may be repeated.
absl::StatusOr<std::string> CommitCheckpoint(
    const std::string& root, Manifest manifest, const std::string& tokenizer,
    const std::string& target_tokenizer = "");

// Removes what was written of a step that will not be committed.
absl::Status AbandonCheckpoint(const std::string& root, int64_t step);

// Paths of the committed checkpoints, newest first. Errors: those of file.h;
// none for a root that does not exist.
absl::StatusOr<std::vector<std::string>> ListCheckpoints(
    const std::string& root);

// The newest checkpoint that opens. Damaged ones are passed over with a
// warning in the log. Errors: NotFound if there is none at all; DataLoss if
// none of those there can be read.
absl::StatusOr<std::string> LatestCheckpoint(const std::string& root);

// Removes all but the newest `keep` (>= 1) checkpoints. Each is renamed to
// ".partial" first, so that a crash leaves no half checkpoint.
absl::Status PruneCheckpoints(const std::string& root, int64_t keep);

// Reads a checkpoint. Thread-safe.
class CheckpointReader {
 public:
  // Reads the manifest and the headers of all shards, and checks that they
  // agree. Errors: NotFound if there is no checkpoint at `path`; DataLoss if
  // anything is missing, added or altered; FailedPrecondition for one of a
  // later version; those of file.h.
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

  // Reads everything once. Errors: those of Read and ReadTokenizer.
  absl::Status Verify() const;

 private:
  explicit CheckpointReader(std::string path) : path_(std::move(path)) {}

  absl::StatusOr<std::string> ReadTokenizerFile(
      const std::string& file, const std::string& sha256) const;

  const std::string path_;
  Manifest manifest_;
  std::map<std::string, std::unique_ptr<SafetensorsReader>> shards_;
};

}  // namespace gshard

#endif  // SERVICES_CHECKPOINT_CHECKPOINT_H_
