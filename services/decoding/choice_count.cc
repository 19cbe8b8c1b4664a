#include "services/decoding/choice_count.h"

#include <algorithm>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "services/base/check.h"

namespace gshard {

namespace {

// Adds each choice's cost beyond the mean.
void AddCosts(absl::Span<const int32_t> experts,
              absl::Span<const int32_t> sentence_of_token,
              absl::Span<ChoiceCount> sentences) {
  CHECK(experts.size() == 2 * sentence_of_token.size());
  const auto visit = [&](const auto& choice) {
    for (size_t i = 0; i < experts.size(); ++i) {
      const int32_t sentence = sentence_of_token[i / 2];
      if (sentence >= 0 && experts[i] >= 0) choice(sentence, experts[i]);
    }
  };
  std::vector<double> load;  // choices of each expert
  double made = 0, squares = 0;
  visit([&](int32_t, int32_t expert) {
    const auto e = static_cast<size_t>(expert);
    if (e >= load.size()) load.resize(e + 1);
    squares += 2 * load[e] + 1;
    ++load[e];
    ++made;
  });
  visit([&](int32_t sentence, int32_t expert) {
    sentences[sentence].cost +=
        load[static_cast<size_t>(expert)] * made / squares - 1;
  });
}

}  // namespace

void AddChoices(const Program& program, const std::vector<Tensor>& outputs,
                absl::Span<const int32_t> sentence_of_token,
                absl::Span<ChoiceCount> sentences) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    absl::string_view name = program.outputs[i].first;
    if (absl::ConsumePrefix(&name, "kept/")) {
      // Two per token, unless there is only one expert.
      const int64_t choices = std::min<int64_t>(outputs[i].size(), 2);
      for (const int32_t sentence : sentence_of_token) {
        if (sentence < 0) continue;
        sentences[sentence].made += choices;
        sentences[sentence].cost += static_cast<double>(choices);
      }
    } else if (absl::ConsumePrefix(&name, "expert/")) {
      AddCosts(outputs[i].span<int32_t>(), sentence_of_token, sentences);
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
