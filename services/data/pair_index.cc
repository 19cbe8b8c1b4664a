#include "services/data/pair_index.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <filesystem>
#include <limits>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "services/base/check.h"
#include "services/base/status_macros.h"
#include "services/checkpoint/sha256.h"
#include "services/config/language_name.h"
#include "services/data/pair_line.h"

namespace gshard {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr char kMagic[] = "gshard pairs 02\n";
constexpr size_t kMagicBytes = 16;
constexpr size_t kDigestBytes = 64;
constexpr size_t kBufferBytes = size_t{1} << 20;  // whole entries
constexpr size_t kMaxDescription = size_t{16} << 20;
static_assert(kBufferBytes % sizeof(PairEntry) == 0);

struct Front {
  char magic[kMagicBytes];
  uint64_t pairs;
  uint64_t description_bytes;
};
static_assert(sizeof(Front) == 32);

absl::string_view BytesOf(const Front& front) {
  return {reinterpret_cast<const char*>(&front), sizeof(front)};
}

std::string InfoToText(const PairIndexInfo& info) {
  std::string text =
      absl::StrCat("key\t", info.key, "\ntext_digest\t", info.text_digest,
                   "\nreport\t", info.report.pairs);
  for (const int64_t count : info.report.bad)
    absl::StrAppend(&text, "\t", count);
  absl::StrAppend(&text, "\t", info.report.left_out_long, "\n");
  for (const std::string& language : info.languages) {
    absl::StrAppend(&text, "language\t", language, "\n");
  }
  return text;
}

bool ReportFromFields(absl::Span<const absl::string_view> fields,
                      TextReport* report) {
  if (fields.size() != 2 + kBadLineReasons) return false;
  std::vector<int64_t> counts(fields.size());
  for (size_t i = 0; i < fields.size(); ++i) {
    if (!absl::SimpleAtoi(fields[i], &counts[i]) || counts[i] < 0) return false;
  }
  report->pairs = counts.front();
  for (int i = 0; i < kBadLineReasons; ++i) report->bad[i] = counts[1 + i];
  report->left_out_long = counts.back();
  return true;
}

bool InfoFromText(absl::string_view text, PairIndexInfo* info) {
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  if (lines.size() < 4 || !lines.back().empty()) return false;
  for (size_t i = 0; i + 1 < lines.size(); ++i) {
    const std::vector<absl::string_view> fields =
        absl::StrSplit(lines[i], '\t');
    const char* const names[] = {"key", "text_digest", "report"};
    if (fields[0] != (i < 3 ? names[i] : "language")) return false;
    if (i == 2) {
      if (!ReportFromFields(absl::MakeConstSpan(fields).subspan(1),
                            &info->report)) {
        return false;
      }
      continue;
    }
    if (fields.size() != 2) return false;
    std::string value(fields[1]);
    if (i == 0) {
      info->key = std::move(value);
    } else if (i == 1) {
      info->text_digest = std::move(value);
    } else if (IsLanguageName(value)) {
      info->languages.push_back(std::move(value));
    } else {
      return false;
    }
  }
  return true;
}

// Whether the error means that the file system or kernel lacks the operation.
bool MeansNotThere(int error_number) {
  return error_number == EPERM || error_number == EOPNOTSUPP ||
         error_number == ENOSYS || error_number == EINVAL;
}

// Gives the file at `path` the name `name`. Errors: AlreadyExists if a file has
// that name; others of file.h.
absl::Status GiveName(const std::string& path, const std::string& name) {
  int result = link(path.c_str(), name.c_str());
  // The file system has no hard links.
  if (result != 0 && MeansNotThere(errno)) {
    result = renameat2(AT_FDCWD, path.c_str(), AT_FDCWD, name.c_str(),
                       RENAME_NOREPLACE);
  }
  // The file system can only replace names. If another file appears after the
  // check, one valid file replaces another.
  if (result != 0 && MeansNotThere(errno)) {
    if (access(name.c_str(), F_OK) == 0) return FileError(EEXIST, "make", name);
    result = rename(path.c_str(), name.c_str());
  }
  if (result != 0) return FileError(errno, "make", name);
  return SyncDirectory(std::filesystem::absolute(name).parent_path().string());
}

// Removes what killed processes left beside the index at `path`. One that is at
// work changes its file much more often.
void RemoveAbandoned(const std::string& path) {
  constexpr std::chrono::hours kAbandonedAfter(1);
  const std::filesystem::path index = std::filesystem::absolute(path);
  const std::string prefix = index.filename().string() + ".";
  const auto names = ListDirectory(index.parent_path().string());
  if (!names.ok()) return;  // Create() says why
  for (const std::string& name : *names) {
    if (!absl::StartsWith(name, prefix) || !absl::EndsWith(name, ".tmp")) {
      continue;
    }
    const std::filesystem::path file = index.parent_path() / name;
    std::error_code error;  // another process was faster
    const auto changed = std::filesystem::last_write_time(file, error);
    if (error || std::filesystem::file_time_type::clock::now() - changed <
                     kAbandonedAfter) {
      continue;
    }
    std::filesystem::remove(file, error);
  }
}

}  // namespace

std::string PairIndexName(const std::string& key) {
  return absl::StrCat(Sha256(key).substr(0, 32), ".pairs");
}

absl::StatusOr<std::unique_ptr<const PairIndex>> PairIndex::Open(
    const std::string& path, const std::string& key) {
  ASSIGN_OR_RETURN(auto file, InputFile::Open(path));
  ASSIGN_OR_RETURN(const FileVersion version, file->Version());
  std::unique_ptr<PairIndex> index(new PairIndex(std::move(file), version));
  RETURN_IF_ERROR(Annotate(index->Load(key), path));
  return index;
}

absl::Status PairIndex::Load(const std::string& key) {
  std::string part;
  RETURN_IF_ERROR(file_->ReadSome(0, sizeof(Front), &part));
  if (part.size() < sizeof(Front)) {
    return absl::DataLossError(
        absl::StrCat(part.size(), " bytes are no index"));
  }
  Front front;
  memcpy(&front, part.data(), sizeof(front));
  if (memcmp(front.magic, kMagic, kMagicBytes) != 0) {
    return absl::DataLossError("not an index of this version");
  }
  const uint64_t rest = version_.bytes - sizeof(front);
  if (front.pairs > std::numeric_limits<int32_t>::max() ||
      front.description_bytes > std::min<uint64_t>(rest, kMaxDescription) ||
      rest < kDigestBytes ||
      rest - kDigestBytes !=
          front.pairs * sizeof(PairEntry) + front.description_bytes) {
    return absl::DataLossError(absl::StrCat("expected the bytes of ",
                                            front.pairs, " pairs, got ", rest));
  }
  // In the order of writing.
  Sha256Stream digest;
  bool sound = true;
  shapes_.reserve(front.pairs);
  const uint64_t end = sizeof(front) + front.pairs * sizeof(PairEntry);
  for (uint64_t at = sizeof(front); at < end; at += part.size()) {
    const size_t wanted = std::min<uint64_t>(kBufferBytes, end - at);
    RETURN_IF_ERROR(file_->ReadSome(at, wanted, &part));
    if (part.size() < wanted) return absl::DataLossError("it has been cut");
    digest.Append(part);
    sound = Take(part) && sound;
  }
  std::string description;
  RETURN_IF_ERROR(file_->ReadSome(end, front.description_bytes, &description));
  digest.Append(description);
  digest.Append(BytesOf(front));
  RETURN_IF_ERROR(
      file_->ReadSome(end + front.description_bytes, kDigestBytes, &part));
  if (digest.Finish() != part) {
    return absl::DataLossError("its bytes do not have its digest");
  }
  if (!InfoFromText(description, &info_) ||
      info_.report.pairs != static_cast<int64_t>(front.pairs)) {
    return absl::DataLossError("its description cannot be read");
  }
  if (info_.key != key) {
    return absl::FailedPreconditionError("it is of another text");
  }
  for (const PairShape& shape : shapes_) {
    sound = sound && shape.language < info_.languages.size();
  }
  return sound ? absl::OkStatus()
               : absl::DataLossError("its entries are not sound");
}

bool PairIndex::Take(absl::string_view entries) {
  bool sound = true;
  for (size_t at = 0; at < entries.size(); at += sizeof(PairEntry)) {
    PairEntry entry;
    memcpy(&entry, entries.data() + at, sizeof(entry));
    const size_t file = entry.shape.file;
    sound = sound && file + 1 >= file_ends_.size();
    if (file >= file_ends_.size()) file_ends_.resize(file + 1);
    sound = sound && entry.offset() >= file_ends_[file];
    file_ends_[file] = entry.offset() + entry.bytes();
    shapes_.push_back(entry.shape);
  }
  return sound;
}

absl::StatusOr<std::vector<PairEntry>> PairIndex::Read(
    absl::Span<const int32_t> indices) const {
  std::vector<PairEntry> entries(indices.size());
  std::string part;
  bool sound = true;
  for (size_t i = 0; i < indices.size() && sound; ++i) {
    CHECK(indices[i] >= 0 && static_cast<size_t>(indices[i]) < shapes_.size());
    RETURN_IF_ERROR(
        file_->ReadSome(sizeof(Front) + indices[i] * sizeof(PairEntry),
                        sizeof(PairEntry), &part));
    sound = part.size() == sizeof(PairEntry);
    if (sound) memcpy(&entries[i], part.data(), sizeof(PairEntry));
    sound = sound && entries[i].shape == shapes_[indices[i]];
  }
  RETURN_IF_ERROR(file_->CheckVersion(version_));
  if (sound) return entries;
  return absl::FailedPreconditionError(
      absl::StrCat(file_->path(), " is not what it was when it was opened"));
}

absl::StatusOr<std::unique_ptr<PairIndexWriter>> PairIndexWriter::Create(
    const std::string& path) {
  RemoveAbandoned(path);
  ASSIGN_OR_RETURN(auto file, OutputFile::CreateBeside(path));
  std::unique_ptr<PairIndexWriter> writer(
      new PairIndexWriter(path, std::move(file)));
  RETURN_IF_ERROR(writer->file_->Append(std::string(sizeof(Front), '\0')));
  return writer;
}

// If finished, the file has its final name by then.
PairIndexWriter::~PairIndexWriter() { unlink(file_->path().c_str()); }

absl::Status PairIndexWriter::Flush() {
  digest_.Append(buffer_);
  RETURN_IF_ERROR(file_->Append(buffer_));
  buffer_.clear();
  return absl::OkStatus();
}

absl::Status PairIndexWriter::Add(const PairEntry& entry) {
  ++pairs_;
  buffer_.append(reinterpret_cast<const char*>(&entry), sizeof(entry));
  return buffer_.size() < kBufferBytes ? absl::OkStatus() : Flush();
}

absl::Status PairIndexWriter::Finish(const PairIndexInfo& info) {
  const std::string description = InfoToText(info);
  buffer_ += description;
  RETURN_IF_ERROR(Flush());
  Front front;
  memcpy(front.magic, kMagic, kMagicBytes);
  front.pairs = pairs_;
  front.description_bytes = description.size();
  digest_.Append(BytesOf(front));
  RETURN_IF_ERROR(file_->Append(digest_.Finish()));
  RETURN_IF_ERROR(file_->WriteAt(0, BytesOf(front)));
  RETURN_IF_ERROR(file_->Sync());
  RETURN_IF_ERROR(file_->Close());
  absl::Status status = GiveName(file_->path(), path_);
  if (absl::IsAlreadyExists(status)) {
    status = PairIndex::Open(path_, info.key).status();
    if (!absl::IsDataLoss(status)) return status;  // another process was faster
    // Others may do the same now: one valid file replaces another.
    return RenamePath(file_->path(), path_);
  }
  return status;
}

}  // namespace gshard
