// The slow twin of RunningBatch, for one sentence: at every position it decodes
// each hypothesis again from its beginning, in a cache of its own.

#ifndef TESTS_SERVICES_DECODING_SLOW_TRANSLATION_H_
#define TESTS_SERVICES_DECODING_SLOW_TRANSLATION_H_

#include <numeric>
#include <utility>
#include <vector>

#include "services/base/check.h"
#include "services/decoding/decoder_cache.h"
#include "services/decoding/translator.h"
#include "services/model/inputs.h"

namespace gshard::reference {

class SlowTranslation {
 public:
  SlowTranslation(const Translator& translator, const TensorMap& parameters,
                  SourceSentence sentence)
      : translator_(translator),
        parameters_(parameters),
        sentence_(std::move(sentence)) {}

  std::vector<DecodedHypothesis> Run() {
    TensorMap inputs;
    const auto length = static_cast<int64_t>(sentence_.ids.size());
    AddTokenInputs("source", Tensor::Ints({1, length}, sentence_.ids),
                   Tensor::Ints({1}, {static_cast<int32_t>(length)}), inputs);
    inputs["key"] = KeyInput(0);
    memory_ = RunProgram(translator_.encode(), std::move(inputs));

    BeamSearch search = translator_.Search(sentence_);
    std::vector<std::vector<int32_t>> live = {{}};
    while (!search.done()) {
      std::vector<std::vector<TokenScore>> candidates;
      for (size_t k = 0; k < live.size(); ++k) {
        const Tensor logits = Decode(live[k]);
        candidates.push_back(TopTokens(
            logits.span<float>(),
            {.count = search.candidates_wanted(),
             .never = translator_.never(sentence_.options.allow_unknown),
             .also = search.tokens_wanted(static_cast<int>(k))}));
      }
      search.Advance(candidates);
      std::vector<std::vector<int32_t>> next;
      for (int k = 0; k < search.num_live(); ++k) {
        next.push_back(live[search.parent(k)]);
        next.back().push_back(search.last_token(k));
      }
      live = std::move(next);
    }
    return search.Results();
  }

 private:
  TensorMap RunProgram(const DeviceExecutor& executor, TensorMap inputs) const {
    auto outputs = executor.Run(std::move(inputs), parameters_);
    CHECK(outputs.ok());
    TensorMap named;
    for (size_t i = 0; i < outputs->size(); ++i) {
      named[executor.program().outputs[i].first] = (*outputs)[i];
    }
    return named;
  }

  // Logits [1, V] of the next token after `tokens`.
  Tensor Decode(const std::vector<int32_t>& tokens) const {
    const auto Ls = static_cast<int64_t>(sentence_.ids.size());
    const int64_t steps = static_cast<int64_t>(tokens.size()) + 1;
    const int64_t Ts = PagesFor(Ls), T = PagesFor(steps);
    DecoderCache cache(translator_.decode().program(), Ts + T);
    CHECK(cache.Reserve(Ts + T).ok());
    const PageTable source = cache.AddSources(memory_, {Ls}).value()[0];
    PageTable pages;
    for (int64_t t = 0; t < T; ++t) pages.push_back(cache.pages().Take());
    Tensor logits;
    for (int32_t p = 0; p < steps; ++p) {
      TensorMap inputs = {
          {"tokens", Tensor::Ints({1, 1}, {p == 0 ? translator_.tokens().bos
                                                  : tokens[p - 1]})},
          {"positions", Tensor::Ints({1, 1}, {p})},
          {"valid", Tensor::Ints({1, 1}, {1})},
          {"slots",
           Tensor::Ints({1}, {static_cast<int32_t>(pages[p / kPagePositions] *
                                                       kPagePositions +
                                                   p % kPagePositions)})},
          {"lengths", Tensor::Ints({1}, {p + 1})},
          {"pages", Tensor::Ints({1, T}, pages)},
          {"source_lengths", Tensor::Ints({1}, {static_cast<int32_t>(Ls)})},
          {"source_pages", Tensor::Ints({1, Ts}, source)},
          {"key", KeyInput(0)}};
      cache.MoveTo(inputs);
      TensorMap outputs = RunProgram(translator_.decode(), std::move(inputs));
      for (auto& [name, tensor] : outputs) cache.TakeBack(name, tensor);
      logits = outputs.at("logits");
    }
    return logits;
  }

  const Translator& translator_;
  const TensorMap& parameters_;
  const SourceSentence sentence_;
  TensorMap memory_;
};

}  // namespace gshard::reference

#endif  // TESTS_SERVICES_DECODING_SLOW_TRANSLATION_H_
