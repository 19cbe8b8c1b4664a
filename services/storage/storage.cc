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

absl::StatusOr<std::vector<std::string>> InputFile::ReadRanges(
    const std::vector<FileRange>& ranges) const {
  std::vector<std::string> parts;
  parts.reserve(ranges.size());
  for (const FileRange& range : ranges) {
    std::string& part = parts.emplace_back(range.size, '\0');
    ASSIGN_OR_RETURN(const size_t count,
                     ReadSome(range.offset, part.data(), range.size));
    part.resize(count);
  }
  return parts;
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
