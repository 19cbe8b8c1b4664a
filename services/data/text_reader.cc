#include "services/data/text_reader.h"

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"

namespace gshard {

absl::StatusOr<std::unique_ptr<TextReader>> TextReader::Open(
    const std::string& path) {
  ASSIGN_OR_RETURN(auto file, InputFile::Open(path));
  return std::unique_ptr<TextReader>(new TextReader(std::move(file)));
}

absl::Status TextReader::CheckVersion(const TextVersion& expected) const {
  ASSIGN_OR_RETURN(const TextVersion now, Version());
  if (now == expected) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(path(), " has changed since it was first read: expected ",
                   expected.bytes, " bytes, modified at ", expected.modified_ns,
                   " ns, got ", now.bytes, " at ", now.modified_ns,
                   now.inode == expected.inode ? "" : ", another file"));
}

absl::Status TextReader::ReadAt(uint64_t offset, size_t size,
                                std::string* text) const {
  text->resize(size);
  ASSIGN_OR_RETURN(const size_t count,
                   file_->ReadSome(offset, text->data(), size));
  text->resize(count);
  return absl::OkStatus();
}

}  // namespace gshard
