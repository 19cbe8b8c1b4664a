// The safetensors file format: named tensors behind a JSON header.
//
//   u64 little-endian: N, bytes of the header
//   N bytes of JSON:   {"__metadata__": {string: string},
//                       NAME: {"dtype": "F32", "shape": [2, 3],
//                              "data_offsets": [begin, end]}, ...}
//   the elements:      row-major, little-endian, no holes, to the end of file
//
// Compatible in both directions with any safetensors library for the element
// types F32, I32, I64, F64 and U8.
//
// A file is not trusted. Opening one checks the whole header (its length, its
// JSON, names, types, that shapes and offsets agree, that the tensors fill the
// file without hole or overlap) before anything is allocated on its word.

#ifndef SERVICES_CHECKPOINT_SAFETENSORS_H_
#define SERVICES_CHECKPOINT_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/checkpoint/file.h"
#include "services/checkpoint/tensor_spec.h"
#include "services/tensor/tensor.h"

namespace gshard {

// A longer header is refused; the format's own limit.
constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

using StringMap = std::map<std::string, std::string>;

// Where a tensor lies in its file.
struct StoredTensor {
  ElementType type = ElementType::kFloat32;
  Dims dims;
  uint64_t offset = 0;  // from the start of the file
  uint64_t bytes = 0;
};

// Writes one file, tensor by tensor; holds no tensor. Not thread-safe.
//
// The bytes of the file depend on the specs, the metadata and the elements
// only, not on the order of the calls: names are sorted in the header, and the
// elements lie in order of falling element size, then name, which keeps every
// tensor aligned without holes.
class SafetensorsWriter {
 public:
  // Makes the file beside `path`; Finish puts it there.
  // Errors: InvalidArgument for names or shapes that the format cannot hold;
  // AlreadyExists for two specs of one name; those of file.h.
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(
      const std::string& path, const std::vector<TensorSpec>& specs,
      const StringMap& metadata, FaultPoints* faults = nullptr);
  ~SafetensorsWriter();  // removes the file unless finished

  // Writes the elements of one of the specs. Errors: NotFound for another
  // name, AlreadyExists for the second time, InvalidArgument if `tensor` does
  // not look as its spec said; those of file.h.
  absl::Status Write(const std::string& name, const Tensor& tensor);

  // Syncs the file and gives it its name. Errors: FailedPrecondition naming a
  // tensor that was not written; those of file.h.
  absl::Status Finish();

 private:
  SafetensorsWriter(std::string path, std::unique_ptr<OutputFile> file,
                    std::map<std::string, StoredTensor> tensors,
                    FaultPoints* faults);

  const std::string path_;
  std::unique_ptr<OutputFile> file_;
  const std::map<std::string, StoredTensor> tensors_;
  FaultPoints* const faults_;
  std::map<std::string, bool> written_;
  bool finished_ = false;
};

// What a SafetensorsWriter with these arguments writes before the elements.
struct SafetensorsHeader {
  std::string bytes;

  // What the byte at `offset` is part of: "tensor 'x'", "the metadata", or the
  // length or the form of the header.
  std::string PartAt(size_t offset) const;

  std::vector<std::pair<size_t, std::string>> ends;  // of parts, ascending
};

// Errors: those of SafetensorsWriter::Create about its arguments.
absl::StatusOr<SafetensorsHeader> MakeSafetensorsHeader(
    const std::vector<TensorSpec>& specs, const StringMap& metadata);

// Reads the tensors of one file, each when asked for. Thread-safe.
class SafetensorsReader {
 public:
  // Errors: DataLoss, saying what is wrong, for a file that breaks the format
  // in any way; Unimplemented for an element type that we don't have; those
  // of file.h.
  static absl::StatusOr<std::unique_ptr<SafetensorsReader>> Open(
      const std::string& path);

  const std::map<std::string, StoredTensor>& tensors() const {
    return tensors_;
  }
  const StringMap& metadata() const { return metadata_; }

  // Errors: NotFound; DataLoss if the file has become shorter.
  absl::StatusOr<Tensor> Read(const std::string& name) const;

 private:
  explicit SafetensorsReader(std::unique_ptr<InputFile> file)
      : file_(std::move(file)) {}

  std::unique_ptr<InputFile> file_;
  std::map<std::string, StoredTensor> tensors_;
  StringMap metadata_;
};

}  // namespace gshard

#endif  // SERVICES_CHECKPOINT_SAFETENSORS_H_
