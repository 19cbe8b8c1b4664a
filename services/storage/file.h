// Files on disk, with system errors mapped to the status code that tells the
// caller what to do. Files that may as well be in an object store are accessed
// through storage.h.
//
// Errors of every function here, by system error:
//   NOT_FOUND           no such file or directory
//   ALREADY_EXISTS      it is there already
//   RESOURCE_EXHAUSTED  disk, quota, file-size limit or descriptors are used up
//   PERMISSION_DENIED   permissions, or a read-only file system
//   DATA_LOSS           the device failed, or the file is shorter than asked
//   FAILED_PRECONDITION a directory where a file should be, or the reverse
//   INVALID_ARGUMENT    a name is longer than any may be, or is that of an
//                       object: what is asked for takes a disk
//   UNAVAILABLE         anything else
//
// Functions that change the disk take an object that is consulted before each
// change (fault_points.h), or null; it must outlive them.

#ifndef SERVICES_STORAGE_FILE_H_
#define SERVICES_STORAGE_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/storage/fault_points.h"

namespace gshard {

// The status for `error_number`, an errno: "write /a/b: No space left".
absl::Status FileError(int error_number, absl::string_view operation,
                       absl::string_view path);

// Eight random hexadecimal digits, unique across processes and machines.
std::string UniqueDigits();

// A file being written. Not thread-safe.
class OutputFile {
 public:
  // Creates or truncates the file.
  static absl::StatusOr<std::unique_ptr<OutputFile>> Create(
      const std::string& path, FaultPoints* faults = nullptr);

  // Creates a file beside `path`, "path.<random>.tmp", that no other process
  // writes to, to be moved into place by RenamePath.
  static absl::StatusOr<std::unique_ptr<OutputFile>> CreateBeside(
      const std::string& path, FaultPoints* faults = nullptr);
  ~OutputFile();  // closes silently; call Close to get errors
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Appends all of `bytes` to what Append has written so far.
  absl::Status Append(absl::string_view bytes);

  // Writes all of `bytes` at `offset` from the start.
  absl::Status WriteAt(uint64_t offset, absl::string_view bytes);

  // Waits until the bytes are on the device.
  absl::Status Sync();

  // Further calls of any kind fail.
  absl::Status Close();

  const std::string& path() const { return path_; }

 private:
  OutputFile(std::string path, int fd, FaultPoints* faults);

  const std::string path_;
  int fd_;
  FaultPoints* const faults_;
  uint64_t end_ = 0;
};

// Writes `bytes` to `path` so that a reader, even after a crash, sees either
// all of them or the previous content: written beside, synced, renamed.
absl::Status WriteFileAtomically(const std::string& path,
                                 absl::string_view bytes,
                                 FaultPoints* faults = nullptr);

// Renames `from` to `to`, replacing a file, but never a non-empty directory,
// and syncs the directory of `to`.
absl::Status RenamePath(const std::string& from, const std::string& to,
                        FaultPoints* faults = nullptr);

// Creates `path` and missing parent directories, and waits until their names
// are on the device.
absl::Status MakeDirectories(const std::string& path,
                             FaultPoints* faults = nullptr);

// Waits until the entries of the directory are on the device.
absl::Status SyncDirectory(const std::string& path,
                           FaultPoints* faults = nullptr);

// Names in the directory, sorted, without "." and "..".
absl::StatusOr<std::vector<std::string>> ListDirectory(const std::string& path);

// Removes the file, or the directory with its contents; links are removed, not
// followed. OK if there is nothing.
absl::Status RemoveTree(const std::string& path, FaultPoints* faults = nullptr);

// Whether there is a directory, or a link to one. False only if there is
// nothing of that name, or another kind of file. Errors: also UNAVAILABLE for a
// link to nothing: what it leads to may be mounted later.
absl::StatusOr<bool> DirectoryExists(const std::string& path);

}  // namespace gshard

#endif  // SERVICES_STORAGE_FILE_H_
