// InputFile: a file or object open for reading, and its version.

#ifndef SERVICES_STORAGE_INPUT_FILE_H_
#define SERVICES_STORAGE_INPUT_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gshard {

// Changes with the file, unless a writer deliberately hides the change.
struct FileVersion {
  uint64_t inode = 0;  // for objects: digits of the tag
  uint64_t bytes = 0;
  int64_t modified_ns = 0;  // since 1970

  bool operator==(const FileVersion&) const = default;
};

struct FileRange {
  uint64_t offset = 0;
  size_t size = 0;
};

// Thread-safe.
class InputFile {
 public:
  // As Storage::Of(path).Open(path). Errors: those of storage.h;
  // FAILED_PRECONDITION if it is not a regular file.
  static absl::StatusOr<std::unique_ptr<InputFile>> Open(
      const std::string& path);
  virtual ~InputFile() = default;
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  // Size in bytes when it was opened.
  uint64_t size() const { return size_; }

  // Reads exactly `size` bytes at `offset`. Errors: DATA_LOSS if the file is
  // shorter.
  absl::Status ReadAt(uint64_t offset, void* target, size_t size) const;

  // Reads up to `size` bytes, fewer at the end of the file; returns how many.
  virtual absl::StatusOr<size_t> ReadSome(uint64_t offset, void* target,
                                          size_t size) const = 0;

  // The same into `bytes`, whose size changes.
  absl::Status ReadSome(uint64_t offset, size_t size, std::string* bytes) const;

  // Reads `ranges`, truncated at the end of the file. In an object store nearby
  // ranges are merged, and several requests run at a time.
  virtual absl::StatusOr<std::vector<std::string>> ReadRanges(
      const std::vector<FileRange>& ranges) const;

  // The current version; of an object, the version when it was opened, as no
  // other is read.
  virtual absl::StatusOr<FileVersion> Version() const = 0;

  // Errors: also FAILED_PRECONDITION unless it is `expected`.
  absl::Status CheckVersion(const FileVersion& expected) const;

  // The best read size for sequential reading, in bytes.
  virtual size_t part_bytes() const = 0;

  const std::string& path() const { return path_; }

 protected:
  InputFile(std::string path, uint64_t size)
      : path_(std::move(path)), size_(size) {}

 private:
  const std::string path_;
  const uint64_t size_;
};

// Reads the whole file. Errors: RESOURCE_EXHAUSTED, reading nothing, if it is
// longer than `max_bytes`.
absl::StatusOr<std::string> ReadFile(const std::string& path,
                                     uint64_t max_bytes);

}  // namespace gshard

#endif  // SERVICES_STORAGE_INPUT_FILE_H_
