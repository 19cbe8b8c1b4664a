#include "services/storage/folder_storage.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/storage/file.h"

namespace gshard {
namespace {

class DiskFile final : public InputFile {
 public:
  DiskFile(std::string path, int fd, uint64_t size)
      : InputFile(std::move(path), size), fd_(fd) {}
  ~DiskFile() override { ::close(fd_); }

  absl::StatusOr<size_t> ReadSome(uint64_t offset, void* target,
                                  size_t size) const override {
    char* const to = static_cast<char*>(target);
    size_t done = 0;
    while (done < size) {
      const ssize_t count = ::pread(fd_, to + done, size - done,
                                    static_cast<off_t>(offset + done));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return FileError(errno, "read", path());
      if (count == 0) break;
      done += static_cast<size_t>(count);
    }
    return done;
  }

  absl::StatusOr<FileVersion> Version() const override {
    struct stat status;
    if (::fstat(fd_, &status) != 0) return FileError(errno, "look at", path());
    return FileVersion{
        .inode = status.st_ino,
        .bytes = static_cast<uint64_t>(status.st_size),
        .modified_ns = status.st_mtim.tv_sec * int64_t{1'000'000'000} +
                       status.st_mtim.tv_nsec};
  }

  size_t part_bytes() const override { return 256 << 10; }

 private:
  const int fd_;
};

class NewDiskFile final : public NewFile {
 public:
  NewDiskFile(std::string path, std::unique_ptr<OutputFile> file,
              FaultPoints* faults)
      : path_(std::move(path)), file_(std::move(file)), faults_(faults) {}
  ~NewDiskFile() override {
    if (!finished_) RemoveTree(file_->path(), faults_).IgnoreError();
  }

  absl::Status WriteAt(uint64_t offset, absl::string_view bytes) override {
    return file_->WriteAt(offset, bytes);
  }

  absl::Status Finish() override {
    RETURN_IF_ERROR(file_->Sync());
    RETURN_IF_ERROR(file_->Close());
    RETURN_IF_ERROR(RenamePath(file_->path(), path_, faults_));
    finished_ = true;
    return absl::OkStatus();
  }

 private:
  const std::string path_;
  const std::unique_ptr<OutputFile> file_;  // beside `path_`
  FaultPoints* const faults_;
  bool finished_ = false;
};

class Folders final : public Storage {
 public:
  absl::StatusOr<std::unique_ptr<InputFile>> Open(
      const std::string& path) const override {
    // Non-blocking: opening a pipe must not hang.
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return FileError(errno, "open", path);
    struct stat status;
    if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
      ::close(fd);
      return absl::FailedPreconditionError(
          absl::StrCat("open '", path, "': not a regular file"));
    }
    return std::make_unique<DiskFile>(path, fd,
                                      static_cast<uint64_t>(status.st_size));
  }

  absl::StatusOr<std::unique_ptr<NewFile>> Create(
      const std::string& path, uint64_t, FaultPoints* faults) const override {
    ASSIGN_OR_RETURN(auto file, OutputFile::CreateBeside(path, faults));
    return std::make_unique<NewDiskFile>(path, std::move(file), faults);
  }

  absl::Status Write(const std::string& path, absl::string_view bytes,
                     FaultPoints* faults) const override {
    return WriteFileAtomically(path, bytes, faults);
  }

  absl::Status MakeFolder(const std::string& path,
                          FaultPoints* faults) const override {
    return MakeDirectories(path, faults);
  }

  absl::StatusOr<std::vector<std::string>> List(
      const std::string& path) const override {
    return ListDirectory(path);
  }

  absl::Status Remove(const std::string& path,
                      FaultPoints* faults) const override {
    return RemoveTree(path, faults);
  }

  std::string DraftOf(const std::string& folder) const override {
    return absl::StrCat(folder, kDraftSuffix);
  }

  std::string NameInDraft(const std::string& name) const override {
    return name;
  }

  absl::StatusOr<bool> IsCommitted(const std::string& folder,
                                   absl::string_view) const override {
    return DirectoryExists(folder);
  }

  absl::Status Commit(const std::string& folder, absl::string_view marker,
                      absl::string_view bytes,
                      FaultPoints* faults) const override {
    const std::string draft = DraftOf(folder);
    RETURN_IF_ERROR(
        WriteFileAtomically(absl::StrCat(draft, "/", marker), bytes, faults));
    return RenamePath(draft, folder, faults);
  }

  absl::Status RemoveDraft(const std::string& folder, absl::string_view,
                           FaultPoints* faults) const override {
    return RemoveTree(DraftOf(folder), faults);
  }

  absl::StatusOr<std::vector<StoredFolder>> ListFolders(
      const std::string& root, absl::string_view prefix,
      absl::string_view) const override {
    ASSIGN_OR_RETURN(const auto names, ListDirectory(root));
    std::vector<StoredFolder> folders;
    for (const std::string& name : names) {
      if (!absl::StartsWith(name, prefix)) continue;
      const std::string path = absl::StrCat(root, "/", name);
      ASSIGN_OR_RETURN(const bool is_folder, DirectoryExists(path));
      if (!is_folder) continue;
      const size_t dot = std::min(name.find('.'), name.size());
      folders.push_back({name.substr(0, dot), name.substr(dot), path});
    }
    return folders;
  }

  absl::StatusOr<std::string> SetAside(const std::string& root,
                                       const StoredFolder& folder,
                                       absl::string_view suffix,
                                       absl::string_view,
                                       FaultPoints* faults) const override {
    const std::string aside = absl::StrCat(root, "/", folder.name, suffix);
    RETURN_IF_ERROR(RemoveTree(aside, faults));
    RETURN_IF_ERROR(RenamePath(folder.path, aside, faults));
    return aside;
  }
};

}  // namespace

const Storage& FolderStorage() {
  static const Storage& storage = *new Folders();
  return storage;
}

}  // namespace gshard
