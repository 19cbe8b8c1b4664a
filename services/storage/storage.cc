#include "services/storage/storage.h"

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/storage/folder_storage.h"
#include "services/storage/object_path.h"
#include "services/storage/object_storage.h"

namespace gshard {

const Storage& Storage::Of(absl::string_view path) {
  return IsObjectPath(path) ? ObjectStorage() : FolderStorage();
}

absl::StatusOr<std::unique_ptr<InputFile>> InputFile::Open(
    const std::string& path) {
  return Storage::Of(path).Open(path);
}

absl::Status InputFile::ReadAt(uint64_t offset, void* target,
                               size_t size) const {
  ASSIGN_OR_RETURN(const size_t count, ReadSome(offset, target, size));
  if (count == size) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("read '", path(), "': the file ",
                                          "ends at byte ", offset + count, ", ",
                                          size - count, " bytes too early"));
}

absl::Status InputFile::ReadSome(uint64_t offset, size_t size,
                                 std::string* bytes) const {
  bytes->resize(size);
  ASSIGN_OR_RETURN(const size_t count, ReadSome(offset, bytes->data(), size));
  bytes->resize(count);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> InputFile::ReadRanges(
    const std::vector<FileRange>& ranges) const {
  std::vector<std::string> parts(ranges.size());
  for (size_t i = 0; i < ranges.size(); ++i) {
    RETURN_IF_ERROR(ReadSome(ranges[i].offset, ranges[i].size, &parts[i]));
  }
  return parts;
}

absl::Status InputFile::CheckVersion(const FileVersion& expected) const {
  ASSIGN_OR_RETURN(const FileVersion now, Version());
  if (now == expected) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(path(), " has changed since it was first read: expected ",
                   expected.bytes, " bytes, modified at ", expected.modified_ns,
                   " ns, got ", now.bytes, " at ", now.modified_ns,
                   now.inode == expected.inode ? "" : ", another file"));
}

absl::StatusOr<std::string> ReadFile(const std::string& path,
                                     uint64_t max_bytes) {
  ASSIGN_OR_RETURN(const auto file, InputFile::Open(path));
  if (file->size() > max_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("read '", path, "': expected at most ", max_bytes,
                     " bytes, got ", file->size()));
  }
  std::string bytes(file->size(), '\0');
  RETURN_IF_ERROR(file->ReadAt(0, bytes.data(), bytes.size()));
  return bytes;
}

}  // namespace gshard
