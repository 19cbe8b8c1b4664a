#include "services/data/pair_indexer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "services/base/concurrently.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/checkpoint/sha256.h"
#include "services/data/line_scanner.h"
#include "services/storage/object_path.h"

namespace gshard {
namespace {

// The maximum that fits into PairEntry.place.
constexpr uint64_t kMaxFileBytes = uint64_t{1} << 48;
// Files whose versions are read: a store takes a while for each.
constexpr size_t kAtATime = 32;

// Writes the entries of a text, file by file.
class Indexer {
 public:
  Indexer(const PairEncoder& encoder, PairIndexWriter* writer,
          std::stop_token stop)
      : encoder_(encoder), writer_(*writer), stop_(std::move(stop)) {}

  absl::Status AddFile(const TextFile& file, const FileVersion& version,
                       uint16_t number) {
    if (version.bytes >= kMaxFileBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected fewer than 2^48 bytes, got ", version.bytes));
    }
    const int64_t before = info_.report.pairs;
    first_problem_.clear();
    ASSIGN_OR_RETURN(const auto reader, InputFile::Open(file.path));
    LineScanner scanner(kMaxLineBytes, [&](const ScannedLine& line) {
      if (status_.ok()) status_ = AddLine(line, file, number);
    });
    std::string part;
    for (uint64_t offset = 0; status_.ok(); offset += part.size()) {
      if (stop_.stop_requested()) {
        return absl::CancelledError("told to stop before all was read");
      }
      RETURN_IF_ERROR(reader->ReadSome(offset, reader->part_bytes(), &part));
      if (part.empty()) break;
      digest_.Append(part);
      scanner.Append(part);
    }
    if (status_.ok()) scanner.Finish();
    RETURN_IF_ERROR(status_);
    RETURN_IF_ERROR(reader->CheckVersion(version));
    if (info_.report.pairs > before) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "no sentence pairs of use among ", scanner.lines(), " lines",
        first_problem_.empty() ? "" : absl::StrCat("; ", first_problem_)));
  }

  absl::Status Finish(std::string key) {
    info_.key = std::move(key);
    info_.text_digest = digest_.Finish();
    return writer_.Finish(info_);
  }

 private:
  void LeaveOut(const ScannedLine& line, const LineProblem& problem) {
    ++info_.report.bad_of(problem.reason);
    Note(line, problem.message);
  }

  void Note(const ScannedLine& line, absl::string_view problem) {
    if (!first_problem_.empty()) return;
    first_problem_ = absl::StrCat("line ", line.number, ": ", problem);
  }

  absl::Status AddLine(const ScannedLine& line, const TextFile& file,
                       uint16_t number) {
    if (line.too_long) {
      LeaveOut(line, {BadLineReason::kTooManyBytes,
                      absl::StrCat("longer than ", kMaxLineBytes, " bytes")});
      return absl::OkStatus();
    }
    const ParsedLine parsed = ParsePairLine(line.text, file.language);
    if (const auto* problem = std::get_if<LineProblem>(&parsed)) {
      LeaveOut(line, *problem);
    }
    const auto* pair = std::get_if<PairLine>(&parsed);
    if (pair == nullptr) return absl::OkStatus();
    ASSIGN_OR_RETURN(const EncodedPair encoded, encoder_.Encode(*pair));
    if (const auto* problem = std::get_if<LineProblem>(&encoded)) {
      LeaveOut(line, *problem);
    } else if (std::holds_alternative<TooLong>(encoded)) {
      ++info_.report.left_out_long;
      Note(line,
           absl::StrCat("longer than ", encoder_.max_length(), " pieces"));
    } else {
      return AddPair(line, *pair, std::get<PieceIds>(encoded), number);
    }
    return absl::OkStatus();
  }

  absl::Status AddPair(const ScannedLine& line, const PairLine& pair,
                       const PieceIds& ids, uint16_t number) {
    if (info_.report.pairs == std::numeric_limits<int32_t>::max()) {
      return absl::InvalidArgumentError(
          "the text has 2^31 pairs or more, which is too many for one job");
    }
    ++info_.report.pairs;
    auto language = languages_.find(pair.language);
    if (language == languages_.end()) {
      if (languages_.size() > std::numeric_limits<uint16_t>::max()) {
        return absl::InvalidArgumentError("expected at most 65536 languages");
      }
      const auto next = static_cast<uint16_t>(languages_.size());
      language = languages_.emplace(pair.language, next).first;
      info_.languages.emplace_back(pair.language);
    }
    return writer_.Add(
        {.place = line.offset << 16 | (line.text.size() - 1),
         .shape = {.source_less1 = static_cast<uint16_t>(ids.source.size() - 1),
                   .target_less1 = static_cast<uint16_t>(ids.target.size() - 1),
                   .language = language->second,
                   .file = number}});
  }

  const PairEncoder& encoder_;
  PairIndexWriter& writer_;
  const std::stop_token stop_;
  PairIndexInfo info_;
  Sha256Stream digest_;
  absl::flat_hash_map<std::string, uint16_t> languages_;
  std::string first_problem_;  // first bad line of the file
  absl::Status status_;
};

absl::Status Build(const VersionedText& text, const PairEncoder& encoder,
                   const std::string& key, PairIndexWriter* writer,
                   std::stop_token stop) {
  Indexer indexer(encoder, writer, std::move(stop));
  for (size_t f = 0; f < text.files.size(); ++f) {
    RETURN_IF_ERROR(Annotate(indexer.AddFile(text.files[f], text.versions[f],
                                             static_cast<uint16_t>(f)),
                             text.files[f].path));
  }
  return indexer.Finish(key);
}

}  // namespace

absl::StatusOr<VersionedText> ReadTextVersions(std::vector<TextFile> files) {
  VersionedText text{std::move(files), {}};
  text.versions.resize(text.files.size());
  RETURN_IF_ERROR(RunConcurrently(
      text.files.size(), kAtATime, [&](size_t i) -> absl::Status {
        ASSIGN_OR_RETURN(const auto reader,
                         InputFile::Open(text.files[i].path));
        ASSIGN_OR_RETURN(text.versions[i], reader->Version());
        return absl::OkStatus();
      }));
  return text;
}

std::string PairIndexKey(const VersionedText& text,
                         const PairEncoder& encoder) {
  // Excludes weights and temperatures, which are applied to an index.
  std::string all = absl::StrCat(encoder.max_length(), "\n",
                                 Sha256(encoder.source().model_bytes()), "\n",
                                 Sha256(encoder.target().model_bytes()), "\n");
  for (size_t f = 0; f < text.files.size(); ++f) {
    const TextFile& file = text.files[f];
    absl::StrAppend(&all, file.path.size(), " ", file.path, "\n", file.language,
                    "\n", text.versions[f].bytes, "\n",
                    text.versions[f].modified_ns, "\n");
    // Modification times of objects have a resolution of seconds. Inode numbers
    // may differ on another machine.
    if (IsObjectPath(file.path)) {
      absl::StrAppend(&all, text.versions[f].inode, "\n");
    }
  }
  return Sha256(all);
}

absl::StatusOr<std::unique_ptr<const PairIndex>> OpenPairIndex(
    const VersionedText& text, const PairEncoder& encoder,
    const std::vector<std::string>& directories, std::stop_token stop) {
  const std::string key = PairIndexKey(text, encoder);
  const std::string name = PairIndexName(key);
  for (const std::string& directory : directories) {
    auto index = PairIndex::Open(absl::StrCat(directory, "/", name), key);
    if (index.ok()) return index;
    // An unusable directory is detected when the index is built.
    if (!absl::IsDataLoss(index.status())) continue;
    LogWarning("an index of text is made anew", {{"status", index.status()}});
  }
  absl::Status status = absl::InvalidArgumentError("expected a directory");
  for (const std::string& directory : directories) {
    const std::string path = absl::StrCat(directory, "/", name);
    status = MakeDirectories(directory);
    if (!status.ok()) continue;
    auto writer = PairIndexWriter::Create(path);
    status = writer.status();
    if (!status.ok()) continue;
    status = Build(text, encoder, key, writer->get(), stop);
    if (status.ok()) return PairIndex::Open(path, key);
    // Another disk may have more room.
    if (!absl::IsResourceExhausted(status)) return status;
  }
  return Annotate(status, "no place for the index of the text");
}

}  // namespace gshard
