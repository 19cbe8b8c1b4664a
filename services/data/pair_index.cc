#include "services/data/pair_index.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "services/base/status_macros.h"
#include "services/checkpoint/sha256.h"
#include "services/data/pair_line.h"
#include "services/tokenizer/language_name.h"

namespace gshard {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr char kMagic[] = "gshard pairs 01\n";
constexpr size_t kMagicBytes = 16;
constexpr size_t kDigestBytes = 64;
constexpr size_t kBufferBytes = size_t{1} << 20;

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

}  // namespace

std::string PairIndexName(const std::string& key) {
  return absl::StrCat(Sha256(key).substr(0, 32), ".pairs");
}

absl::StatusOr<std::unique_ptr<const PairIndex>> PairIndex::Open(
    const std::string& path, const std::string& key) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return FileError(errno, "open", path);
  struct stat status;
  void* mapped = MAP_FAILED;
  absl::Status error;
  if (fstat(fd, &status) != 0) {
    error = FileError(errno, "look at", path);
  } else if (status.st_size < static_cast<off_t>(sizeof(Front))) {
    error = absl::DataLossError(
        absl::StrCat(path, ": ", status.st_size, " bytes are no index"));
  } else {
    mapped = mmap(nullptr, status.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) error = FileError(errno, "map", path);
  }
  close(fd);
  RETURN_IF_ERROR(error);
  std::unique_ptr<PairIndex> index(
      new PairIndex(mapped, static_cast<size_t>(status.st_size)));
  RETURN_IF_ERROR(Annotate(index->Check(key), path));
  return index;
}

PairIndex::~PairIndex() { munmap(mapped_, mapped_bytes_); }

absl::Status PairIndex::Check(const std::string& key) {
  const absl::string_view all(static_cast<const char*>(mapped_), mapped_bytes_);
  Front front;
  memcpy(&front, all.data(), sizeof(front));
  if (memcmp(front.magic, kMagic, kMagicBytes) != 0) {
    return absl::DataLossError("not an index of this version");
  }
  const uint64_t rest = mapped_bytes_ - sizeof(front);
  if (front.pairs > std::numeric_limits<int32_t>::max() ||
      front.description_bytes > rest || rest < kDigestBytes ||
      rest - kDigestBytes !=
          front.pairs * sizeof(PairEntry) + front.description_bytes) {
    return absl::DataLossError(absl::StrCat("expected the bytes of ",
                                            front.pairs, " pairs, got ", rest));
  }
  // In the order of writing.
  const absl::string_view body = all.substr(sizeof(front), rest - kDigestBytes);
  ChainedDigest digest;
  digest.Append(body);
  digest.Append(BytesOf(front));
  if (digest.Finish() != all.substr(all.size() - kDigestBytes)) {
    return absl::DataLossError("its bytes do not have its digest");
  }
  if (!InfoFromText(body.substr(front.pairs * sizeof(PairEntry)), &info_) ||
      info_.report.pairs != static_cast<int64_t>(front.pairs)) {
    return absl::DataLossError("its description cannot be read");
  }
  if (info_.key != key) {
    return absl::FailedPreconditionError("it is of another text");
  }
  entries_ = absl::MakeConstSpan(
      reinterpret_cast<const PairEntry*>(body.data()), front.pairs);
  return CheckEntries();
}

absl::Status PairIndex::CheckEntries() const {
  uint64_t end = 0;  // of the line before
  uint16_t file = 0;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const PairEntry& entry = entries_[i];
    if (entry.file != file) end = 0;
    if (entry.file < file || entry.offset() < end ||
        entry.language >= info_.languages.size()) {
      return absl::DataLossError(absl::StrCat("entry ", i, " is not sound"));
    }
    file = entry.file;
    end = entry.offset() + entry.bytes();
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<PairIndexWriter>> PairIndexWriter::Create(
    const std::string& path) {
  ASSIGN_OR_RETURN(auto file, OutputFile::CreateBeside(path));
  std::unique_ptr<PairIndexWriter> writer(
      new PairIndexWriter(path, std::move(file)));
  RETURN_IF_ERROR(writer->file_->Append(std::string(sizeof(Front), '\0')));
  return writer;
}

PairIndexWriter::~PairIndexWriter() {
  if (!finished_) unlink(file_->path().c_str());
}

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
  RETURN_IF_ERROR(RenamePath(file_->path(), path_));
  finished_ = true;
  return absl::OkStatus();
}

}  // namespace gshard
