// Latency of one sentence, or of a batch of 32, on an otherwise idle machine,
// by the number of compute threads: a model of 6 + 6 layers, M 512, H 2048, V
// 32000, with random weights, dense or with 16 experts in every other layer,
// two of which together have the weights of the dense layer; 20 tokens in, 20
// out, greedy or with a beam of 4; in float32, bfloat16 and int8, as a router
// serves it.

#include <benchmark/benchmark.h>

#include <map>
#include <vector>

#include "services/base/check.h"
#include "services/base/parallel.h"
#include "services/base/random.h"
#include "services/decoding/translator.h"
#include "services/model/transformer.h"
#include "services/ops/matmul.h"
#include "tests/testing/tiny_model.h"
#include "tests/testing/translate_all.h"

namespace gshard {
namespace {

constexpr int64_t kLength = 20;

ModelConfig BenchmarkModel(ComputeType type, int64_t experts) {
  ModelConfig model = TinyConfig();
  model.compute_type = type;
  model.encoder_layers = model.decoder_layers = 6;
  model.experts = experts;
  model.model_width = 512;
  model.ffn_width = 2048;
  model.expert_width = model.ffn_width / 2;
  model.heads = 8;
  model.head_width = 64;
  model.source_vocabulary_size = model.target_vocabulary_size = 32000;
  model.shared_vocabulary = true;
  model.max_positions = 64;
  return model;
}

struct Model {
  Model(ComputeType type, int64_t experts)
      : config(BenchmarkModel(type, experts)),
        // EOS is never chosen, so every sentence reaches max_length.
        translator(config, *BuildEncodeProgram(config),
                   *BuildDecodeProgram(config),
                   {.bos = 2, .eos = 1, .never = {0, 1, 2}}),
        parameters(
            AsServed(translator.weight_forms(), TinyParameters(config, 1))) {}

  const ModelConfig config;
  const Translator translator;
  const TensorMap parameters;
};

template <ComputeType kType>
void BM_Sentence(benchmark::State& state) {
  InitCompute();
  static std::map<int64_t, Model>& models = *new std::map<int64_t, Model>;
  const int64_t experts = state.range(0);
  const Model& model =
      models.try_emplace(experts, kType, experts).first->second;
  // Sentences differ, since equal tokens would go to the same experts.
  std::vector<SourceSentence> sentences(state.range(3));
  for (size_t s = 0; s < sentences.size(); ++s) {
    for (int64_t i = 0; i < kLength; ++i) {
      sentences[s].ids.push_back(
          static_cast<int32_t>(4 + RandomBelow(FoldIn(1, s), i, 31000)));
    }
    sentences[s].options.beam_size = static_cast<int>(state.range(1));
    sentences[s].options.max_length = kLength;
  }
  SetComputeThreads(static_cast<int>(state.range(2)));
  for (auto _ : state) {
    CHECK(TranslateAll(model.translator, sentences, model.parameters).ok());
  }
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(sentences.size() * kLength),
                         benchmark::Counter::kIsIterationInvariantRate);
  SetComputeThreads(1);
}
void Arguments(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"experts", "beam", "threads", "sentences"})
      ->ArgsProduct({{0, 16}, {1, 4}, {1, 2, 4, 8, 16}, {1, 32}})
      ->Unit(benchmark::kMillisecond)
      ->UseRealTime();
}
BENCHMARK_TEMPLATE(BM_Sentence, ComputeType::kFloat32)->Apply(Arguments);
BENCHMARK_TEMPLATE(BM_Sentence, ComputeType::kBFloat16)->Apply(Arguments);
BENCHMARK_TEMPLATE(BM_Sentence, ComputeType::kInt8)->Apply(Arguments);

}  // namespace
}  // namespace gshard

BENCHMARK_MAIN();
