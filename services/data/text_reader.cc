#include "services/data/text_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/checkpoint/file.h"

namespace gshard {

absl::StatusOr<std::unique_ptr<TextReader>> TextReader::Open(
    const std::string& path) {
  // Without O_NONBLOCK a pipe would wait for a writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return FileError(errno, "open", path);
  std::unique_ptr<TextReader> reader(new TextReader(path, fd));
  struct stat status;
  if (fstat(fd, &status) != 0) return FileError(errno, "look at", path);
  if (!S_ISREG(status.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": expected a regular file"));
  }
  return reader;
}

TextReader::~TextReader() { close(fd_); }

absl::StatusOr<TextVersion> TextReader::Version() const {
  struct stat status;
  if (fstat(fd_, &status) != 0) return FileError(errno, "look at", path_);
  return TextVersion{
      .inode = status.st_ino,
      .bytes = static_cast<uint64_t>(status.st_size),
      .modified_ns = status.st_mtim.tv_sec * int64_t{1'000'000'000} +
                     status.st_mtim.tv_nsec};
}

absl::Status TextReader::CheckVersion(const TextVersion& expected) const {
  ASSIGN_OR_RETURN(const TextVersion now, Version());
  if (now == expected) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(path_, " has changed since it was first read: expected ",
                   expected.bytes, " bytes, modified at ", expected.modified_ns,
                   " ns, got ", now.bytes, " at ", now.modified_ns,
                   now.inode == expected.inode ? "" : ", another file"));
}

absl::Status TextReader::ReadAt(uint64_t offset, size_t size,
                                std::string* text) const {
  text->resize(size);
  size_t done = 0;
  while (done < size) {
    const ssize_t n = pread(fd_, text->data() + done, size - done,
                            static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError(errno, "read", path_);
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  text->resize(done);
  return absl::OkStatus();
}

}  // namespace gshard
