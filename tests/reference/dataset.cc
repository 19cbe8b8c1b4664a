#include "tests/reference/dataset.h"

#include <algorithm>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

// A non-owning pointer: callers keep the tokenizer alive for the encoder.
std::shared_ptr<const Tokenizer> Borrowed(const Tokenizer& tokenizer) {
  return {std::shared_ptr<const Tokenizer>(), &tokenizer};
}

}  // namespace

Dataset::Dataset(const PairEncoder& encoder)
    : starts_({0}),
      pad_id_(encoder.source().pad_id()),
      target_pad_id_(encoder.target().pad_id()),
      bos_id_(encoder.target().bos_id()) {}

absl::StatusOr<Dataset> Dataset::Create(const Corpus& corpus,
                                        const Tokenizer& tokenizer,
                                        const TextOptions& options) {
  return Create(corpus, tokenizer, tokenizer, options);
}

absl::StatusOr<Dataset> Dataset::Create(const Corpus& corpus,
                                        const Tokenizer& source_tokenizer,
                                        const Tokenizer& target_tokenizer,
                                        const TextOptions& options) {
  ASSIGN_OR_RETURN(
      const PairEncoder encoder,
      PairEncoder::Create(
          {Borrowed(source_tokenizer), Borrowed(target_tokenizer)}, options));
  Dataset dataset(encoder);
  RETURN_IF_ERROR(dataset.Add(corpus, encoder, 0));
  return dataset;
}

absl::StatusOr<Dataset> Dataset::Read(const std::vector<TextFile>& files,
                                      const Tokenizer& source_tokenizer,
                                      const Tokenizer& target_tokenizer,
                                      const TextOptions& options) {
  ASSIGN_OR_RETURN(
      const PairEncoder encoder,
      PairEncoder::Create(
          {Borrowed(source_tokenizer), Borrowed(target_tokenizer)}, options));
  Dataset dataset(encoder);
  for (size_t f = 0; f < files.size(); ++f) {
    ASSIGN_OR_RETURN(
        const Corpus corpus,
        ReadCorpus(files[f].path, {.default_language = files[f].language}));
    RETURN_IF_ERROR(Annotate(
        dataset.Add(corpus, encoder, static_cast<int32_t>(f)), files[f].path));
  }
  return dataset;
}

absl::Status Dataset::Add(const Corpus& corpus, const PairEncoder& encoder,
                          int32_t file) {
  TextReport report = corpus.report;
  report.pairs = 0;
  for (size_t i = 0; i < corpus.pairs.size(); ++i) {
    const SentencePair& pair = corpus.pairs[i];
    const absl::StatusOr<EncodedPair> encoded =
        encoder.Encode({pair.language, pair.source, pair.target});
    if (!encoded.ok()) {
      return Annotate(encoded.status(), absl::StrCat("pair ", i));
    }
    if (const auto* problem = std::get_if<LineProblem>(&*encoded)) {
      ++report.bad_of(problem->reason);
      continue;
    }
    if (std::holds_alternative<TooLong>(*encoded)) {
      ++report.left_out_long;
      continue;
    }
    const PieceIds& pieces = std::get<PieceIds>(*encoded);
    ++report.pairs;
    ids_.insert(ids_.end(), pieces.source.begin(), pieces.source.end());
    starts_.push_back(static_cast<int64_t>(ids_.size()));
    ids_.insert(ids_.end(), pieces.target.begin(), pieces.target.end());
    starts_.push_back(static_cast<int64_t>(ids_.size()));
    lengths_.push_back(static_cast<int32_t>(
        std::max(pieces.source.size(), pieces.target.size())));
    source_pieces_ += static_cast<int64_t>(pieces.source.size());
    target_pieces_ += static_cast<int64_t>(pieces.target.size());
    const auto language =
        std::find(languages_.begin(), languages_.end(), pair.language);
    language_of_.push_back(static_cast<int32_t>(language - languages_.begin()));
    if (language == languages_.end()) languages_.push_back(pair.language);
    file_of_.push_back(file);
  }
  report_.pairs += report.pairs;
  for (int i = 0; i < kBadLineReasons; ++i) report_.bad[i] += report.bad[i];
  report_.left_out_long += report.left_out_long;
  if (report.pairs > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("no sentence pairs left of ",
                                                 corpus.pairs.size(), ": ",
                                                 report.Summary()));
}

absl::Span<const int32_t> Dataset::source(int32_t index) const {
  CHECK(index >= 0 && index < size());
  const int64_t begin = starts_[2 * index], end = starts_[2 * index + 1];
  return absl::MakeConstSpan(ids_).subspan(begin, end - begin);
}

absl::Span<const int32_t> Dataset::target(int32_t index) const {
  CHECK(index >= 0 && index < size());
  const int64_t begin = starts_[2 * index + 1], end = starts_[2 * index + 2];
  return absl::MakeConstSpan(ids_).subspan(begin, end - begin);
}

PairLengths Dataset::lengths(int32_t index) const {
  return {.longest = lengths_[index],
          .target = static_cast<int32_t>(target(index).size())};
}

absl::StatusOr<std::vector<PieceIds>> Dataset::Read(
    absl::Span<const int32_t> indices) const {
  std::vector<PieceIds> pairs;
  pairs.reserve(indices.size());
  for (const int32_t i : indices) {
    pairs.push_back({{source(i).begin(), source(i).end()},
                     {target(i).begin(), target(i).end()}});
  }
  return pairs;
}

}  // namespace gshard
