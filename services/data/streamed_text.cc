#include "services/data/streamed_text.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/status_macros.h"

namespace gshard {

StreamedText::StreamedText(VersionedText text, PairEncoder encoder,
                           std::unique_ptr<const PairIndex> index)
    : text_(std::move(text)),
      encoder_(std::move(encoder)),
      index_(std::move(index)) {}

absl::StatusOr<std::unique_ptr<StreamedText>> StreamedText::Open(
    std::vector<TextFile> files, TextTokenizers tokenizers,
    const TextOptions& options,
    const std::vector<std::string>& index_directories, std::stop_token stop) {
  ASSIGN_OR_RETURN(PairEncoder encoder,
                   PairEncoder::Create(std::move(tokenizers), options));
  ASSIGN_OR_RETURN(VersionedText text, ReadTextVersions(std::move(files)));
  ASSIGN_OR_RETURN(auto index,
                   OpenPairIndex(text, encoder, index_directories, stop));
  // The digest does not show that the index fits these files.
  const std::vector<uint64_t>& ends = index->file_ends();
  bool fits = ends.size() <= text.files.size();
  for (size_t f = 0; f < ends.size() && fits; ++f) {
    fits = ends[f] <= text.versions[f].bytes;
  }
  for (const PairShape& pair : index->shapes()) {
    fits =
        fits && std::max(pair.source(), pair.target()) <= encoder.max_length();
  }
  if (!fits) return absl::DataLossError("the index does not fit its text");
  return std::unique_ptr<StreamedText>(
      new StreamedText(std::move(text), std::move(encoder), std::move(index)));
}

const PairShape& StreamedText::At(int32_t index) const {
  CHECK(index >= 0 && index < size());
  return index_->shapes()[index];
}

PairLengths StreamedText::lengths(int32_t index) const {
  const PairShape& pair = At(index);
  return {.longest = std::max(pair.source(), pair.target()),
          .target = pair.target()};
}

absl::StatusOr<std::vector<PieceIds>> StreamedText::Read(
    absl::Span<const int32_t> indices) const {
  ASSIGN_OR_RETURN(const std::vector<PairEntry> entries, index_->Read(indices));
  std::vector<size_t> order(indices.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // By file and offset.
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return indices[a] < indices[b]; });
  std::vector<PieceIds> pairs(indices.size());
  for (size_t begin = 0; begin < order.size();) {
    const uint16_t file = entries[order[begin]].shape.file;
    size_t end = begin;
    while (end < order.size() && entries[order[end]].shape.file == file) ++end;
    RETURN_IF_ERROR(ReadFile(
        file, entries, absl::MakeConstSpan(order).subspan(begin, end - begin),
        &pairs));
    begin = end;
  }
  return pairs;
}

absl::Status StreamedText::ReadFile(uint16_t file,
                                    absl::Span<const PairEntry> entries,
                                    absl::Span<const size_t> order,
                                    std::vector<PieceIds>* pairs) const {
  // Reopened, to detect a replaced file.
  ASSIGN_OR_RETURN(const auto reader, InputFile::Open(text_.files[file].path));
  std::vector<FileRange> ranges;
  ranges.reserve(order.size());
  for (const size_t i : order) {
    ranges.push_back({entries[i].offset(), entries[i].bytes()});
  }
  const auto lines = reader->ReadRanges(ranges);
  absl::Status status = lines.status();
  for (size_t n = 0; n < order.size() && status.ok(); ++n) {
    status = TakePair((*lines)[n], entries[order[n]], &(*pairs)[order[n]]);
  }
  // A changed version explains the error better.
  RETURN_IF_ERROR(reader->CheckVersion(text_.versions[file]));
  return Annotate(status, text_.files[file].path);
}

absl::Status StreamedText::TakePair(const std::string& line,
                                    const PairEntry& entry,
                                    PieceIds* pair) const {
  const ParsedLine parsed =
      ParsePairLine(line, text_.files[entry.shape.file].language);
  if (const auto* parts = std::get_if<PairLine>(&parsed)) {
    ASSIGN_OR_RETURN(EncodedPair encoded, encoder_.Encode(*parts));
    auto* const ids = std::get_if<PieceIds>(&encoded);
    if (ids != nullptr &&
        ids->source.size() == static_cast<size_t>(entry.shape.source()) &&
        ids->target.size() == static_cast<size_t>(entry.shape.target())) {
      *pair = std::move(*ids);
      return absl::OkStatus();
    }
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "the line at byte ", entry.offset(), " is not the one that was indexed"));
}

}  // namespace gshard
