// TextReader: a text file and its version.

#ifndef SERVICES_DATA_TEXT_READER_H_
#define SERVICES_DATA_TEXT_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/storage/input_file.h"

namespace gshard {

using TextVersion = FileVersion;

class TextReader {
 public:
  // Errors: those of services/storage/storage.h; FailedPrecondition if it is
  // not a regular file.
  static absl::StatusOr<std::unique_ptr<TextReader>> Open(
      const std::string& path);

  // The file's current version.
  absl::StatusOr<TextVersion> Version() const { return file_->Version(); }

  // FailedPrecondition unless it is `expected`.
  absl::Status CheckVersion(const TextVersion& expected) const;

  const std::string& path() const { return file_->path(); }

  // Up to `size` bytes at `offset`, fewer at the end of the file.
  absl::Status ReadAt(uint64_t offset, size_t size, std::string* text) const;

  // See InputFile.
  absl::StatusOr<std::vector<std::string>> ReadRanges(
      const std::vector<FileRange>& ranges) const {
    return file_->ReadRanges(ranges);
  }
  size_t part_bytes() const { return file_->part_bytes(); }

 private:
  explicit TextReader(std::unique_ptr<InputFile> file)
      : file_(std::move(file)) {}

  const std::unique_ptr<InputFile> file_;
};

}  // namespace gshard

#endif  // SERVICES_DATA_TEXT_READER_H_
