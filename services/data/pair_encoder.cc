#include "services/data/pair_encoder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/status_macros.h"

namespace gshard {

PairEncoder::PairEncoder(TextTokenizers tokenizers, int32_t max_length)
    : tokenizers_(std::move(tokenizers)), max_length_(max_length) {
  for (const std::string& language : source().languages()) {
    const absl::StatusOr<int32_t> tag = source().LanguageTagId(language);
    CHECK(tag.ok());
    tags_.emplace(language, *tag);
  }
}

absl::StatusOr<PairEncoder> PairEncoder::Create(TextTokenizers tokenizers,
                                                const TextOptions& options) {
  CHECK(tokenizers.source != nullptr && tokenizers.target != nullptr);
  if (options.max_length < 3 || options.max_length > 65536) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_length: expected 3 to 65536, got ", options.max_length));
  }
  return PairEncoder(std::move(tokenizers), options.max_length);
}

absl::StatusOr<EncodedPair> PairEncoder::Encode(const PairLine& line) const {
  const auto tag = tags_.find(line.language);
  if (tag == tags_.end()) {
    return LineProblem{BadLineReason::kUnknownLanguage,
                       "the source vocabulary has no tag for the language"};
  }
  auto source_ids = source().Encode(line.source);
  if (!source_ids.ok()) return Annotate(source_ids.status(), "source");
  auto target_ids = target().Encode(line.target);
  if (!target_ids.ok()) return Annotate(target_ids.status(), "target");
  PieceIds ids{*std::move(source_ids), *std::move(target_ids)};
  // Text of only spaces and the like has no pieces.
  if (ids.source.empty() || ids.target.empty()) {
    return LineProblem{BadLineReason::kNoPieces, "a side has no pieces"};
  }
  const size_t length = std::max(ids.source.size() + 2, ids.target.size() + 1);
  if (length > static_cast<size_t>(max_length_)) return TooLong();
  ids.source.insert(ids.source.begin(), tag->second);
  ids.source.push_back(source().eos_id());
  ids.target.push_back(target().eos_id());
  return ids;
}

}  // namespace gshard
