#include "services/decoding/translator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/random.h"
#include "services/base/status_macros.h"
#include "services/decoding/decoder_cache.h"

namespace gshard {

Translator::Translator(const ModelConfig& config, Program encode,
                       Program decode, TargetTokens tokens, Device* device)
    : config_(config),
      encode_(std::move(encode), device, {"cross_"}),
      decode_(std::move(decode), device, {"key/", "value/", "logits"}),
      tokens_(std::move(tokens)),
      never_or_unknown_(tokens_.never) {
  if (tokens_.unk >= 0) never_or_unknown_.push_back(tokens_.unk);
}

absl::Status Translator::status() const {
  absl::Status status = encode_.status();
  status.Update(decode_.status());
  return status;
}

WeightForms Translator::weight_forms() const {
  WeightForms weights = encode_.weight_forms();
  MergeWeightForms(decode_.weight_forms(), weights);
  return weights;
}

absl::Status Translator::Check(const SourceSentence& sentence) const {
  const auto length = static_cast<int64_t>(sentence.ids.size());
  if (length < 1 || length > config_.max_positions) {
    return absl::InvalidArgumentError(absl::StrCat("a sentence must have 1 to ",
                                                   config_.max_positions,
                                                   " tokens, got ", length));
  }
  for (const int32_t id : sentence.ids) {
    if (id >= 0 && id < config_.source_vocabulary_size) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("tokens must lie in [0, ", config_.source_vocabulary_size,
                     "), got ", id));
  }
  return CheckOptions(sentence);
}

absl::Status Translator::CheckOptions(const SourceSentence& sentence) const {
  const DecodeOptions& options = sentence.options;
  auto length = static_cast<int64_t>(options.prefix.size());
  std::vector<std::vector<int32_t>> forced = options.phrases;
  forced.push_back(options.prefix);
  for (const std::vector<int32_t>& tokens : forced) {
    for (const int32_t id : tokens) {
      const std::vector<int32_t>& never = tokens_.never;
      if (id >= 0 && id < config_.target_vocabulary_size && id != tokens_.eos &&
          id != tokens_.unk &&
          std::find(never.begin(), never.end(), id) == never.end()) {
        continue;
      }
      return absl::InvalidArgumentError(
          absl::StrCat("token ", id, " cannot be asked for"));
    }
  }
  for (const std::vector<int32_t>& phrase : options.phrases) {
    length += static_cast<int64_t>(phrase.size());
    if (phrase.empty()) {
      return absl::InvalidArgumentError("expected phrases, got an empty one");
    }
  }
  if (options.phrases.size() > kMaxPhrases) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected at most ", kMaxPhrases, " phrases, got ",
                     options.phrases.size()));
  }
  if (options.alternatives && !options.phrases.empty()) {
    return absl::InvalidArgumentError(
        "expected alternatives or phrases, got both");
  }
  if (options.sampling &&
      (options.alternatives || !options.phrases.empty() ||
       options.sampling->top_k < 1 || !(options.sampling->temperature > 0))) {
    return absl::InvalidArgumentError(
        "expected to draw from 1 token or more, at a temperature above 0, "
        "without alternatives and phrases");
  }
  if (length > 0 && length >= MaxLength(sentence)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a translation that begins and must contain ", length,
                     " tokens cannot have ", MaxLength(sentence)));
  }
  return absl::OkStatus();
}

int Translator::MaxLength(const SourceSentence& sentence) const {
  const int64_t wanted =
      sentence.options.max_length > 0
          ? sentence.options.max_length
          : 2 * static_cast<int64_t>(sentence.ids.size()) + 10;
  return static_cast<int>(std::min(wanted, config_.max_positions));
}

int64_t Translator::CachedPositions(const SourceSentence& sentence) const {
  const int64_t pages =
      PagesFor(static_cast<int64_t>(sentence.ids.size())) +
      sentence.options.beam_size * PagesFor(MaxLength(sentence));
  return pages * kPagePositions;
}

BeamSearch Translator::Search(const SourceSentence& sentence) const {
  DecodeOptions options = sentence.options;
  if (options.sampling) {
    for (const int32_t id : sentence.ids) {
      options.sampling->seed = FoldIn(options.sampling->seed, id);
    }
  }
  return BeamSearch(options, MaxLength(sentence), tokens_.eos);
}

}  // namespace gshard
