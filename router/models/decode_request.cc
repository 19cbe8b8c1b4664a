#include "router/models/decode_request.h"

#include <algorithm>
#include <atomic>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/random.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

constexpr size_t kMaxPrefixBytes = 16384;

absl::Status Contradiction(absl::string_view field, absl::string_view other) {
  return absl::InvalidArgumentError(
      absl::StrCat("options.", field, ": contradicts ", other));
}

absl::Status CheckAlternatives(const v1::TranslateOptions& options) {
  if (!options.alternatives()) return absl::OkStatus();
  if (options.greedy()) return Contradiction("alternatives", "options.greedy");
  if (options.terms_size() > 0) {
    return Contradiction("alternatives", "options.terms");
  }
  return absl::OkStatus();
}

uint64_t NewSeed() {
  static const uint64_t key = [] {
    std::random_device entropy;
    return uint64_t{entropy()} << 32 | entropy();
  }();
  static std::atomic<uint64_t> last = 0;
  return RandomBits(key, ++last);
}

absl::StatusOr<Sampling> CheckSampling(const v1::TranslateOptions& options) {
  const absl::string_view field = "sampling";
  if (options.greedy()) return Contradiction(field, "options.greedy");
  if (options.alternatives()) {
    return Contradiction(field, "options.alternatives");
  }
  if (options.terms_size() > 0) return Contradiction(field, "options.terms");
  if (options.beam_size() > 1) {
    return Contradiction(
        field, absl::StrCat("options.beam_size ", options.beam_size()));
  }
  const v1::Sampling& asked = options.sampling();
  Sampling sampling;
  if (asked.top_k() < 0 || asked.top_k() > kMaxTopK) {
    return OutOfRange("options.sampling.top_k", 1, kMaxTopK, asked.top_k());
  }
  if (asked.top_k() > 0) sampling.top_k = asked.top_k();
  const float temperature = asked.temperature();
  if (temperature != 0) {
    sampling.temperature = temperature;
    if (!(temperature >= static_cast<float>(kMinTemperature) &&
          temperature <= static_cast<float>(kMaxTemperature))) {
      return absl::InvalidArgumentError(absl::StrCat(
          "options.sampling.temperature: expected ", kMinTemperature, " to ",
          kMaxTemperature, ", got ", temperature));
    }
  }
  sampling.seed = asked.has_seed() ? asked.seed() : NewSeed();
  return sampling;
}

}  // namespace

absl::Status OutOfRange(absl::string_view field, int64_t low, int64_t high,
                        int64_t got) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": expected ", low, " to ", high, ", got ", got));
}

absl::StatusOr<DecodeOptions> CheckOptions(const v1::TranslateOptions& options,
                                           int64_t max_positions) {
  DecodeOptions decode;
  if (options.beam_size() < 0 || options.beam_size() > kMaxBeamSize) {
    return OutOfRange("options.beam_size", 1, kMaxBeamSize,
                      options.beam_size());
  }
  if (options.beam_size() > 0) decode.beam_size = options.beam_size();
  if (options.has_length_penalty()) {
    decode.length_penalty = options.length_penalty();
    if (!(decode.length_penalty >= 0.0 &&
          decode.length_penalty <= kMaxLengthPenalty)) {
      return absl::InvalidArgumentError(
          absl::StrCat("options.length_penalty: expected 0 to ",
                       kMaxLengthPenalty, ", got ", decode.length_penalty));
    }
  }
  if (options.max_length() < 0 || options.max_length() > max_positions) {
    return OutOfRange("options.max_length", 1, max_positions,
                      options.max_length());
  }
  if (options.greedy()) {
    if (options.beam_size() > 1) {
      return Contradiction(
          "greedy", absl::StrCat("options.beam_size ", options.beam_size()));
    }
    decode.beam_size = 1;
    decode.length_penalty = 0.0;
  }
  if (options.has_sampling()) {
    ASSIGN_OR_RETURN(decode.sampling, CheckSampling(options));
    decode.beam_size = std::clamp(options.n_best(), 1, kMaxBeamSize);
  }
  if (options.n_best() < 0 || options.n_best() > decode.beam_size) {
    return OutOfRange("options.n_best", 1, decode.beam_size, options.n_best());
  }
  RETURN_IF_ERROR(CheckAlternatives(options));
  RETURN_IF_ERROR(CheckTerms(options));
  if (!v1::UnknownPolicy_IsValid(options.unknown())) {
    return OutOfRange("options.unknown", 0, v1::UnknownPolicy_MAX,
                      options.unknown());
  }
  decode.alternatives = options.alternatives();
  decode.allow_unknown = options.unknown() == v1::UNKNOWN_POLICY_ALLOW;
  if (options.n_best() > 0) {
    decode.n_best = options.n_best();
  } else if (decode.alternatives) {
    decode.n_best = decode.beam_size;
  }
  return decode;
}

int MaxLength(const v1::TranslateOptions& options, int64_t source_tokens,
              const TranslationModel& model) {
  if (options.max_length() > 0) return options.max_length();
  return static_cast<int>(
      std::min(2 * source_tokens + 10, model.max_positions()));
}

absl::Status AddSentenceOptions(const v1::Sentence& request,
                                const v1::TranslateOptions& options,
                                const TranslationModel& model,
                                RequestTerms& terms, SourceSentence& sentence) {
  DecodeOptions& decode = sentence.options;
  decode.max_length =
      MaxLength(options, static_cast<int64_t>(sentence.ids.size()), model);
  if (request.target_prefix().size() > kMaxPrefixBytes) {
    return OutOfRange("target_prefix", 0, kMaxPrefixBytes,
                      static_cast<int64_t>(request.target_prefix().size()));
  }
  if (!request.target_prefix().empty()) {
    auto prefix = model.EncodeTarget(request.target_prefix());
    if (!prefix.ok()) return Annotate(prefix.status(), "target_prefix");
    decode.prefix = *std::move(prefix);
  }
  const auto encode =
      [&](const TargetPhrase& phrase) -> absl::StatusOr<std::vector<int32_t>> {
    auto ids = model.EncodePhrase(phrase.text);
    if (!ids.ok()) return Annotate(ids.status(), phrase.field);
    return ids;
  };
  ASSIGN_OR_RETURN(const std::vector<TargetPhrase> phrases,
                   TargetPhrases(request, options, terms.finder));
  if (decode.alternatives && !phrases.empty()) {
    return absl::InvalidArgumentError("keep: contradicts options.alternatives");
  }
  if (decode.sampling && !phrases.empty()) {
    return absl::InvalidArgumentError("keep: contradicts options.sampling");
  }
  // Phrases beyond what a translation may have are not made tokens of.
  const auto most = static_cast<size_t>(decode.max_length);
  size_t tokens = decode.prefix.size();
  for (const TargetPhrase& phrase : phrases) {
    if (tokens >= most) break;
    std::vector<int32_t>& ids = decode.phrases.emplace_back();
    if (phrase.term < 0) {
      ASSIGN_OR_RETURN(ids, encode(phrase));
    } else {
      std::vector<int32_t>& of_term = terms.tokens[phrase.term];
      if (of_term.empty()) {
        ASSIGN_OR_RETURN(of_term, encode(phrase));
      }
      ids = of_term;
    }
    tokens += ids.size();
  }
  if (tokens > 0 && tokens >= most) {
    return absl::InvalidArgumentError(
        absl::StrCat("target_prefix: expected fewer than ", most,
                     " tokens, with terms and what is kept, got ", tokens,
                     decode.phrases.size() < phrases.size() ? " or more" : ""));
  }
  return absl::OkStatus();
}

}  // namespace gshard
