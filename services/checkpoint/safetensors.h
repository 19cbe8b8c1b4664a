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
// Files are untrusted. Opening one checks the whole header (its length, its
// JSON, names, types, that shapes and offsets agree, that the tensors fill the
// file without hole or overlap) before allocating memory based on it.

#ifndef SERVICES_CHECKPOINT_SAFETENSORS_H_
#define SERVICES_CHECKPOINT_SAFETENSORS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/checkpoint/tensor_spec.h"
#include "services/storage/storage.h"
#include "services/tensor/tensor.h"

namespace gshard {

// Longer headers are refused; the format's own limit.
constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

using StringMap = std::map<std::string, std::string>;

// Location of a tensor in its file.
struct StoredTensor {
  ElementType type = ElementType::kFloat32;
  Dims dims;
  uint64_t offset = 0;  // from the start of the file
  uint64_t bytes = 0;
};

// Writes one file, tensor by tensor, without holding any. Not thread-safe.
//
// The file's bytes depend only on the specs, the metadata and the elements, not
// on the order of the calls: names are sorted in the header, and elements are
// sorted by descending element size, then name, which keeps every tensor
// aligned without holes.
class SafetensorsWriter {
 public:
  // Finish creates the file at `path`. Errors: InvalidArgument for names or
  // shapes that the format cannot represent; AlreadyExists for two specs of one
  // name; those of storage.h.
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(
      const std::string& path, const std::vector<TensorSpec>& specs,
      const StringMap& metadata, FaultPoints* faults = nullptr);

  // Writes the elements of one of the specs; in an object store in file order,
  // see SortAsStored(). Errors: NotFound for an unknown name, AlreadyExists for
  // a repeated one, InvalidArgument if `tensor` does not match its spec; those
  // of storage.h.
  absl::Status Write(const std::string& name, const Tensor& tensor);

  // Makes the file durable and renames it to its final name. Errors:
  // FailedPrecondition naming a tensor that was not written; those of
  // storage.h.
  absl::Status Finish();

 private:
  SafetensorsWriter(std::string path, std::unique_ptr<NewFile> file,
                    std::map<std::string, StoredTensor> tensors)
      : path_(std::move(path)),
        file_(std::move(file)),
        tensors_(std::move(tensors)) {}

  const std::string path_;
  const std::unique_ptr<NewFile> file_;
  const std::map<std::string, StoredTensor> tensors_;
  std::map<std::string, bool> written_;
};

// Sorts items in the order of their elements in a file. `type` and `name`
// return an item's properties.
template <typename Item, typename TypeOf, typename NameOf>
void SortAsStored(std::vector<Item>* items, TypeOf type, NameOf name) {
  std::sort(items->begin(), items->end(), [&](const Item& a, const Item& b) {
    const size_t size_a = ElementSize(type(a)), size_b = ElementSize(type(b));
    return size_a != size_b ? size_a > size_b : name(a) < name(b);
  });
}

// The header that a SafetensorsWriter with these arguments writes.
struct SafetensorsHeader {
  std::string bytes;

  // The part that contains the byte at `offset`: "tensor 'x'", "the metadata",
  // or the length or the form of the header.
  std::string PartAt(size_t offset) const;

  std::vector<std::pair<size_t, std::string>> ends;  // ends of parts, ascending
};

// Errors: those of SafetensorsWriter::Create for invalid arguments.
absl::StatusOr<SafetensorsHeader> MakeSafetensorsHeader(
    const std::vector<TensorSpec>& specs, const StringMap& metadata);

// Reads the tensors of one file on demand. Thread-safe.
class SafetensorsReader {
 public:
  // If everything before the elements has `header_bytes`, as in
  // SafetensorsHeader, the file is read once. Errors: DataLoss, saying what is
  // wrong, for a file that violates the format; Unimplemented for an
  // unsupported element type; those of storage.h.
  static absl::StatusOr<std::unique_ptr<SafetensorsReader>> Open(
      const std::string& path, uint64_t header_bytes = 0);

  const std::map<std::string, StoredTensor>& tensors() const {
    return tensors_;
  }
  const StringMap& metadata() const { return metadata_; }
  // The bytes before the elements, as in SafetensorsHeader. Once: they are not
  // kept.
  std::string TakeHeader() { return std::move(header_); }

  // Errors: NotFound; DataLoss if the file was truncated; ResourceExhausted if
  // there is no memory.
  absl::StatusOr<Tensor> Read(const std::string& name) const;

 private:
  explicit SafetensorsReader(std::unique_ptr<InputFile> file)
      : file_(std::move(file)) {}

  std::unique_ptr<InputFile> file_;
  std::map<std::string, StoredTensor> tensors_;
  StringMap metadata_;
  std::string header_;
};

}  // namespace gshard

#endif  // SERVICES_CHECKPOINT_SAFETENSORS_H_
