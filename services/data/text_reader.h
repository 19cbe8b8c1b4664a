// TextReader: a file of text, and which version of it.

#ifndef SERVICES_DATA_TEXT_READER_H_
#define SERVICES_DATA_TEXT_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gshard {

// Changes with the file, unless a writer deliberately hides the change.
struct TextVersion {
  uint64_t inode = 0;
  uint64_t bytes = 0;
  int64_t modified_ns = 0;  // since 1970

  bool operator==(const TextVersion&) const = default;
};

class TextReader {
 public:
  // Errors: those of services/checkpoint/file.h; FailedPrecondition if it is
  // not a regular file.
  static absl::StatusOr<std::unique_ptr<TextReader>> Open(
      const std::string& path);
  ~TextReader();
  TextReader(const TextReader&) = delete;
  TextReader& operator=(const TextReader&) = delete;

  // As it is now.
  absl::StatusOr<TextVersion> Version() const;

  // FailedPrecondition unless it is `expected`.
  absl::Status CheckVersion(const TextVersion& expected) const;

  const std::string& path() const { return path_; }

  // Up to `size` bytes at `offset`, fewer at the end of the file.
  absl::Status ReadAt(uint64_t offset, size_t size, std::string* text) const;

 private:
  TextReader(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  const std::string path_;
  const int fd_;
};

}  // namespace gshard

#endif  // SERVICES_DATA_TEXT_READER_H_
