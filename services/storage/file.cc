#include "services/storage/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/status_macros.h"
#include "services/storage/object_path.h"

namespace gshard {
namespace {

// `path` without its last component.
std::string DirectoryOf(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

absl::StatusCode CodeOf(int error_number) {
  switch (error_number) {
    case ENOENT:
      return absl::StatusCode::kNotFound;
    case EEXIST:
    case ENOTEMPTY:
      return absl::StatusCode::kAlreadyExists;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return absl::StatusCode::kResourceExhausted;
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::StatusCode::kPermissionDenied;
    case EIO:
      return absl::StatusCode::kDataLoss;
    case EISDIR:
    case ENOTDIR:
      return absl::StatusCode::kFailedPrecondition;
    case ENAMETOOLONG:
      return absl::StatusCode::kInvalidArgument;
    default:
      return absl::StatusCode::kUnavailable;
  }
}

absl::Status Reach(FaultPoints* faults, const DiskChange& change) {
  return faults == nullptr ? absl::OkStatus() : faults->Reach(change);
}

// Otherwise this would create a folder named "s3:".
absl::Status CheckOfDisk(const std::string& path) {
  if (!IsObjectPath(path)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'", path, "': expected a path of a disk"));
}

}  // namespace

absl::Status FileError(int error_number, absl::string_view operation,
                       absl::string_view path) {
  return absl::Status(
      CodeOf(error_number),
      absl::StrCat(operation, " '", path,
                   "': ", std::generic_category().message(error_number)));
}

std::string UniqueDigits() {
  uint32_t bits = 0;
  CHECK(::getrandom(&bits, sizeof(bits), 0) == sizeof(bits));
  return absl::StrCat(absl::Hex(bits, absl::kZeroPad8));
}

absl::StatusOr<std::unique_ptr<OutputFile>> OutputFile::Create(
    const std::string& path, FaultPoints* faults) {
  RETURN_IF_ERROR(CheckOfDisk(path));
  RETURN_IF_ERROR(Reach(faults, {DiskChange::Kind::kCreate, path}));
  const int fd =
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return FileError(errno, "create", path);
  return std::unique_ptr<OutputFile>(new OutputFile(path, fd, faults));
}

absl::StatusOr<std::unique_ptr<OutputFile>> OutputFile::CreateBeside(
    const std::string& path, FaultPoints* faults) {
  RETURN_IF_ERROR(CheckOfDisk(path));
  const std::string beside = absl::StrCat(path, ".", UniqueDigits(), ".tmp");
  RETURN_IF_ERROR(Reach(faults, {DiskChange::Kind::kCreate, beside}));
  const int fd =
      ::open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return FileError(errno, "create", beside);
  return std::unique_ptr<OutputFile>(new OutputFile(beside, fd, faults));
}

OutputFile::OutputFile(std::string path, int fd, FaultPoints* faults)
    : path_(std::move(path)), fd_(fd), faults_(faults) {}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
}

absl::Status OutputFile::Append(absl::string_view bytes) {
  RETURN_IF_ERROR(WriteAt(end_, bytes));
  end_ += bytes.size();
  return absl::OkStatus();
}

absl::Status OutputFile::WriteAt(uint64_t offset, absl::string_view bytes) {
  RETURN_IF_ERROR(
      Reach(faults_, {DiskChange::Kind::kWrite, path_, "", offset, bytes}));
  while (!bytes.empty()) {
    const ssize_t written =
        ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0) {
      if (errno == EINTR) continue;
      return FileError(errno, "write", path_);
    }
    offset += written;
    bytes.remove_prefix(written);
  }
  return absl::OkStatus();
}

absl::Status OutputFile::Sync() {
  RETURN_IF_ERROR(Reach(faults_, {DiskChange::Kind::kSync, path_}));
  if (::fsync(fd_) != 0) return FileError(errno, "sync", path_);
  return absl::OkStatus();
}

absl::Status OutputFile::Close() {
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0) return FileError(errno, "close", path_);
  return absl::OkStatus();
}

absl::Status WriteFileAtomically(const std::string& path,
                                 absl::string_view bytes, FaultPoints* faults) {
  ASSIGN_OR_RETURN(const auto file, OutputFile::CreateBeside(path, faults));
  absl::Status status = file->Append(bytes);
  if (status.ok()) status = file->Sync();
  if (status.ok()) status = file->Close();
  if (status.ok()) status = RenamePath(file->path(), path, faults);
  if (!status.ok()) RemoveTree(file->path(), faults).IgnoreError();
  return status;
}

absl::Status RenamePath(const std::string& from, const std::string& to,
                        FaultPoints* faults) {
  RETURN_IF_ERROR(Reach(faults, {DiskChange::Kind::kRename, from, to}));
  if (::rename(from.c_str(), to.c_str()) != 0) {
    return FileError(errno, absl::StrCat("rename '", from, "' to"), to);
  }
  return SyncDirectory(DirectoryOf(to), faults);
}

absl::Status MakeDirectories(const std::string& path, FaultPoints* faults) {
  RETURN_IF_ERROR(CheckOfDisk(path));
  ASSIGN_OR_RETURN(const bool is_there, DirectoryExists(path));
  if (is_there) return absl::OkStatus();
  const std::string parent = DirectoryOf(path);
  if (parent != path) RETURN_IF_ERROR(MakeDirectories(parent, faults));
  RETURN_IF_ERROR(Reach(faults, {DiskChange::Kind::kMakeDirectory, path}));
  // Another process may have been faster.
  if (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) {
    return FileError(errno, "make directory", path);
  }
  ASSIGN_OR_RETURN(const bool is_made, DirectoryExists(path));
  if (!is_made) return FileError(ENOTDIR, "make directory", path);
  return SyncDirectory(parent, faults);
}

absl::Status SyncDirectory(const std::string& path, FaultPoints* faults) {
  RETURN_IF_ERROR(Reach(faults, {DiskChange::Kind::kSyncDirectory, path}));
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return FileError(errno, "open directory", path);
  const int result = ::fsync(fd);
  const int error_number = errno;
  ::close(fd);
  // Some network file systems have no fsync of directories; their renames are
  // durable by themselves.
  if (result != 0 && error_number != EINVAL && error_number != ENOTSUP) {
    return FileError(error_number, "sync directory", path);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> ListDirectory(
    const std::string& path) {
  std::error_code error;
  std::vector<std::string> names;
  std::filesystem::directory_iterator it(path, error);
  for (; !error && it != std::filesystem::directory_iterator();
       it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error) return FileError(error.value(), "list", path);
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status RemoveTree(const std::string& path, FaultPoints* faults) {
  std::error_code error;
  const auto type = std::filesystem::symlink_status(path, error).type();
  if (type == std::filesystem::file_type::not_found) return absl::OkStatus();
  if (error) return FileError(error.value(), "remove", path);
  if (type == std::filesystem::file_type::directory) {
    const auto names = ListDirectory(path);
    if (absl::IsNotFound(names.status())) return absl::OkStatus();
    if (!names.ok()) return names.status();
    for (const std::string& name : *names) {
      RETURN_IF_ERROR(RemoveTree(absl::StrCat(path, "/", name), faults));
    }
  }
  RETURN_IF_ERROR(Reach(faults, {DiskChange::Kind::kRemove, path}));
  // A missing file is no error: another process may have been faster.
  std::filesystem::remove(path, error);
  if (error) return FileError(error.value(), "remove", path);
  return absl::OkStatus();
}

absl::StatusOr<bool> DirectoryExists(const std::string& path) {
  struct stat status;
  if (::stat(path.c_str(), &status) == 0) return S_ISDIR(status.st_mode);
  if (errno != ENOENT) return FileError(errno, "look at", path);
  if (::lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return false;
    return FileError(errno, "look at", path);
  }
  // Not a link: it has been made since.
  if (!S_ISLNK(status.st_mode)) return S_ISDIR(status.st_mode);
  return absl::UnavailableError(
      absl::StrCat("look at '", path, "': it is a link to nothing"));
}

}  // namespace gshard
