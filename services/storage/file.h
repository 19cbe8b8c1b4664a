// Files of a disk: every failure of the system as the status code that says
// what to do about it. What may as well be in an object store is read and
// written through storage.h.
//
// Errors of every function here, by what the system said:
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

// Eight hexadecimal digits that no other process has, on any machine.
std::string UniqueDigits();

// A file being written. Not thread-safe.
class OutputFile {
 public:
  // Makes the file, or empties it if it is there.
  static absl::StatusOr<std::unique_ptr<OutputFile>> Create(
      const std::string& path, FaultPoints* faults = nullptr);

  // Makes a file beside `path` that no other process writes to, for RenamePath
  // to put there: "path.<random>.tmp".
  static absl::StatusOr<std::unique_ptr<OutputFile>> CreateBeside(
      const std::string& path, FaultPoints* faults = nullptr);
  ~OutputFile();  // closes silently; call Close to get errors
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Writes all of `bytes` at the end of what Append has written.
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

// Puts `bytes` at `path` so that a reader, even after a crash, sees either all
// of them or what was there before: written beside, synced, renamed.
absl::Status WriteFileAtomically(const std::string& path,
                                 absl::string_view bytes,
                                 FaultPoints* faults = nullptr);

// Renames `from` to `to`, replacing a file, never a directory that holds
// something, and syncs the directory of `to`.
absl::Status RenamePath(const std::string& from, const std::string& to,
                        FaultPoints* faults = nullptr);

// Makes `path` and the directories above it that are missing, and waits until
// their names are on the device.
absl::Status MakeDirectories(const std::string& path,
                             FaultPoints* faults = nullptr);

// Waits until the entries of the directory are on the device.
absl::Status SyncDirectory(const std::string& path,
                           FaultPoints* faults = nullptr);

// Names in the directory, sorted, without "." and "..".
absl::StatusOr<std::vector<std::string>> ListDirectory(const std::string& path);

// Removes the file, or the directory with all in it; links are removed, not
// followed. OK if there is nothing.
absl::Status RemoveTree(const std::string& path, FaultPoints* faults = nullptr);

bool IsDirectory(const std::string& path);

}  // namespace gshard

#endif  // SERVICES_STORAGE_FILE_H_
