#include "router/edge/translate_answer.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

// At most, of the tag and the length of a result.
constexpr size_t kFieldBytes = 6;

}  // namespace

AnswerContext::AnswerContext(const PreparedTranslation& prepared)
    : model(prepared.model) {
  for (const SourceSentence& sentence : prepared.sentences) {
    // All but the tag.
    source_tokens.push_back(static_cast<int32_t>(sentence.ids.size()) - 1);
    unknown_tokens.push_back(model->CountUnknown(sentence.ids));
    phrases.push_back(static_cast<int32_t>(sentence.options.phrases.size()));
    require_full = require_full || sentence.options.require_full;
  }
}

absl::StatusOr<v1::TranslateResponse> MakeAnswer(
    const AnswerContext& context, const std::vector<Hypotheses>& results) {
  v1::TranslateResponse response;
  response.set_model(context.model->id());
  size_t bytes = response.ByteSizeLong();
  for (size_t i = 0; i < results.size(); ++i) {
    v1::TranslationResult* const result = response.add_results();
    result->set_source_token_count(context.source_tokens[i]);
    result->set_unknown_source_tokens(context.unknown_tokens[i]);
    result->set_phrase_count(context.phrases[i]);
    for (const DecodedHypothesis& decoded : results[i]) {
      if (decoded.lost_share > 0.0) {
        if (context.require_full) return NotFull(*context.model);
        response.set_degraded(true);
        result->set_lost_choice_share(static_cast<float>(decoded.lost_share));
      }
      ASSIGN_OR_RETURN(std::string text, context.model->Decode(decoded.ids));
      v1::Hypothesis* const hypothesis = result->add_hypotheses();
      hypothesis->set_text(std::move(text));
      hypothesis->set_score(static_cast<float>(decoded.score));
      hypothesis->set_token_count(decoded.token_count);
      hypothesis->set_truncated(decoded.truncated);
      hypothesis->set_phrases_met(decoded.phrases_met);
    }
    bytes += kFieldBytes + result->ByteSizeLong();
    if (bytes > kMaxAnswerBytes) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "the answer has more than ", kMaxAnswerBytes,
          " bytes: split the call, or lower n_best or max_length"));
    }
  }
  return response;
}

}  // namespace gshard
