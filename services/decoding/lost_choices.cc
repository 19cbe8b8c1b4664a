#include "services/decoding/lost_choices.h"

#include <algorithm>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "services/base/check.h"

namespace gshard {

void AddChoices(const Program& program, const std::vector<Tensor>& outputs,
                absl::Span<const int32_t> sentence_of_token,
                absl::Span<ChoiceCount> sentences) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    absl::string_view name = program.outputs[i].first;
    if (absl::ConsumePrefix(&name, "kept/")) {
      // Of each token: two, unless there is one expert only.
      const int64_t choices = std::min<int64_t>(outputs[i].size(), 2);
      for (const int32_t sentence : sentence_of_token) {
        if (sentence >= 0) sentences[sentence].made += choices;
      }
    } else if (absl::ConsumePrefix(&name, "lost/")) {
      const absl::Span<const int32_t> lost = outputs[i].span<int32_t>();
      CHECK(lost.size() == sentence_of_token.size());
      for (size_t t = 0; t < lost.size(); ++t) {
        if (sentence_of_token[t] >= 0) {
          sentences[sentence_of_token[t]].lost += lost[t];
        }
      }
    }
  }
}

}  // namespace gshard
