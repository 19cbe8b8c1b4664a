#include "services/data/dataset.h"

#include <algorithm>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/status_macros.h"

namespace gshard {

absl::StatusOr<Dataset> Dataset::Create(const Corpus& corpus,
                                        const Tokenizer& tokenizer,
                                        const DatasetOptions& options) {
  return Create(corpus, tokenizer, tokenizer, options);
}

absl::StatusOr<Dataset> Dataset::Create(const Corpus& corpus,
                                        const Tokenizer& source_tokenizer,
                                        const Tokenizer& target_tokenizer,
                                        const DatasetOptions& options) {
  if (options.max_length < 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_length: expected at least 2, got ", options.max_length));
  }
  Dataset dataset;
  dataset.pad_id_ = source_tokenizer.pad_id();
  dataset.target_pad_id_ = target_tokenizer.pad_id();
  dataset.bos_id_ = target_tokenizer.bos_id();
  dataset.starts_.push_back(0);
  absl::flat_hash_map<std::string, int32_t> tags;
  for (size_t i = 0; i < corpus.pairs.size(); ++i) {
    const SentencePair& pair = corpus.pairs[i];
    const std::string where = absl::StrCat("pair ", i);
    auto tag = tags.find(pair.language);
    if (tag == tags.end()) {
      const absl::StatusOr<int32_t> id =
          source_tokenizer.LanguageTagId(pair.language);
      if (!id.ok()) return Annotate(id.status(), where);
      tag = tags.emplace(pair.language, *id).first;
    }
    const auto source = source_tokenizer.Encode(pair.source);
    if (!source.ok()) return Annotate(source.status(), where + " source");
    const auto target = target_tokenizer.Encode(pair.target);
    if (!target.ok()) return Annotate(target.status(), where + " target");
    // Text of spaces and such has no pieces.
    if (source->empty() || target->empty()) {
      ++dataset.left_out_empty_;
      continue;
    }
    const size_t length = std::max(source->size() + 2, target->size() + 1);
    if (length > static_cast<size_t>(options.max_length)) {
      ++dataset.left_out_long_;
      continue;
    }
    std::vector<int32_t>& ids = dataset.ids_;
    ids.push_back(tag->second);
    ids.insert(ids.end(), source->begin(), source->end());
    ids.push_back(source_tokenizer.eos_id());
    dataset.starts_.push_back(static_cast<int64_t>(ids.size()));
    ids.insert(ids.end(), target->begin(), target->end());
    ids.push_back(target_tokenizer.eos_id());
    dataset.starts_.push_back(static_cast<int64_t>(ids.size()));
    dataset.lengths_.push_back(static_cast<int32_t>(length));
    dataset.source_pieces_ += static_cast<int64_t>(source->size()) + 2;
    dataset.target_pieces_ += static_cast<int64_t>(target->size()) + 1;
  }
  if (dataset.lengths_.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no sentence pairs left: of ", corpus.pairs.size(), ", ",
                     dataset.left_out_empty_, " have an empty side and ",
                     dataset.left_out_long_, " are longer than ",
                     options.max_length, " pieces"));
  }
  return dataset;
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

std::vector<int32_t> Dataset::target_lengths() const {
  std::vector<int32_t> lengths(size());
  for (int32_t i = 0; i < size(); ++i) {
    lengths[i] = static_cast<int32_t>(target(i).size());
  }
  return lengths;
}

}  // namespace gshard
