// A training job's text: building its index and reading batches through it,
// beside the text in memory and the tokenizer alone, which is the ceiling of
// both. Memory is the process's own (RssAnon), less what it had before.
//
// The text is made of the titles in tests/data/names.tsv: run from the
// project's root.

#include <benchmark/benchmark.h>
#include <stdlib.h>

#include <fstream>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/random.h"
#include "services/data/batch.h"
#include "services/data/batch_order.h"
#include "services/data/streamed_text.h"
#include "services/tokenizer/trainer.h"
#include "tests/reference/dataset.h"

namespace gshard {
namespace {

// A file of sentence pairs and a tokenizer of 4000 pieces, in a temporary
// folder.
class Sample {
 public:
  explicit Sample(int64_t pairs) {
    char folder[] = "/tmp/gshard_text_XXXXXX";
    CHECK(mkdtemp(folder) != nullptr);
    folder_ = folder;
    const auto corpus = ReadCorpus("tests/data/names.tsv");
    CHECK(corpus.ok());
    const auto& titles = corpus->pairs;
    std::ofstream file(path());
    std::vector<std::string> sentences;
    for (int64_t i = 0; i < pairs; ++i) {
      // Joining two titles keeps most pairs distinct.
      const auto& a = titles[RandomBelow(1, i, titles.size())];
      const auto& b = titles[RandomBelow(2, i, titles.size())];
      const std::string source = absl::StrCat(a.source, " ", b.source);
      const std::string target = absl::StrCat(a.target, " ", b.target);
      file << a.language << '\t' << source << '\t' << target << '\n';
      if (i < 20'000) {
        sentences.push_back(source);
        sentences.push_back(target);
      }
    }
    file.close();
    TokenizerOptions options;
    options.vocab_size = 4000;
    options.languages = {"de", "es", "fr"};
    CHECK(TrainTokenizer(options, sentences, folder_ + "/model").ok());
    auto tokenizer = Tokenizer::Load(folder_ + "/model");
    CHECK(tokenizer.ok());
    tokenizers_.source = *std::move(tokenizer);
    tokenizers_.target = tokenizers_.source;
  }
  ~Sample() { RemoveTree(folder_).IgnoreError(); }

  std::string path() const { return folder_ + "/text.tsv"; }
  std::string index_folder() const { return folder_ + "/index"; }
  const TextTokenizers& tokenizers() const { return tokenizers_; }
  std::vector<TextFile> files() const {
    return {{.path = path(), .language = "", .weight = 1.0}};
  }
  std::unique_ptr<StreamedText> Open() const {
    auto text = StreamedText::Open(files(), tokenizers_, {}, {index_folder()});
    CHECK(text.ok());
    return *std::move(text);
  }
  std::unique_ptr<Dataset> Load() const {
    auto text =
        Dataset::Read(files(), *tokenizers_.source, *tokenizers_.target, {});
    CHECK(text.ok());
    return std::make_unique<Dataset>(*std::move(text));
  }

 private:
  std::string folder_;
  TextTokenizers tokenizers_;
};

const Sample& SampleOf(int64_t pairs) {
  static std::map<int64_t, std::unique_ptr<Sample>> samples;
  auto& sample = samples[pairs];
  if (sample == nullptr) sample = std::make_unique<Sample>(pairs);
  return *sample;
}

double AnonymousBytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  double kilobytes = 0.0;
  while (status >> word) {
    if (word == "RssAnon:") status >> kilobytes;
  }
  return kilobytes * 1024;
}

void CountPairs(benchmark::State& state, int64_t pairs) {
  state.counters["pairs/s"] =
      benchmark::Counter(static_cast<double>(pairs * state.iterations()),
                         benchmark::Counter::kIsRate);
}

void BM_TokenizeOnly(benchmark::State& state) {
  const Sample& sample = SampleOf(state.range(0));
  const auto encoder = PairEncoder::Create(sample.tokenizers(), {});
  const auto corpus = ReadCorpus(sample.path());
  CHECK(encoder.ok() && corpus.ok());
  for (auto _ : state) {
    for (const SentencePair& pair : corpus->pairs) {
      benchmark::DoNotOptimize(
          encoder->Encode({pair.language, pair.source, pair.target}));
    }
  }
  CountPairs(state, state.range(0));
}
BENCHMARK(BM_TokenizeOnly)
    ->ArgName("pairs")
    ->Arg(100'000)
    ->Unit(benchmark::kMillisecond);

void BM_MakeIndex(benchmark::State& state) {
  const Sample& sample = SampleOf(state.range(0));
  for (auto _ : state) {
    state.PauseTiming();
    CHECK(RemoveTree(sample.index_folder()).ok());
    state.ResumeTiming();
    benchmark::DoNotOptimize(sample.Open());
  }
  CountPairs(state, state.range(0));
}
BENCHMARK(BM_MakeIndex)
    ->ArgName("pairs")
    ->Arg(100'000)
    ->Unit(benchmark::kMillisecond);

void BM_OpenIndex(benchmark::State& state) {
  const Sample& sample = SampleOf(state.range(0));
  sample.Open();
  for (auto _ : state) benchmark::DoNotOptimize(sample.Open());
  CountPairs(state, state.range(0));
}
BENCHMARK(BM_OpenIndex)
    ->ArgName("pairs")
    ->Arg(100'000)
    ->Unit(benchmark::kMillisecond);

// Reads batches of 2048 tokens in the order of training.
void ReadBatches(benchmark::State& state, const TokenizedText& text,
                 double before) {
  const auto order =
      BatchOrder::Create(text, {}, EpochSampler::All(text.size()));
  CHECK(order.ok());
  int64_t step = 0, tokens = 0;
  for (auto _ : state) {
    const auto batch = ReadBatch(text, order->Microbatch(step++, 0));
    CHECK(batch.ok());
    tokens += batch->target_tokens;
  }
  state.counters["batches/s"] = benchmark::Counter(
      static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
  state.counters["tokens/s"] = benchmark::Counter(static_cast<double>(tokens),
                                                  benchmark::Counter::kIsRate);
  state.counters["own_bytes_a_pair"] =
      (AnonymousBytes() - before) / text.size();
}

void BM_BatchesInMemory(benchmark::State& state) {
  const Sample& sample = SampleOf(state.range(0));
  const double before = AnonymousBytes();
  ReadBatches(state, *sample.Load(), before);
}
BENCHMARK(BM_BatchesInMemory)->ArgName("pairs")->Arg(100'000);

void BM_BatchesStreamed(benchmark::State& state) {
  const Sample& sample = SampleOf(state.range(0));
  const double before = AnonymousBytes();
  const auto text = sample.Open();
  ReadBatches(state, *text, before);
  state.counters["index_bytes_a_pair"] =
      static_cast<double>(text->memory_bytes()) / text->size();
}
BENCHMARK(BM_BatchesStreamed)->ArgName("pairs")->Arg(100'000)->Arg(1'000'000);

}  // namespace
}  // namespace gshard

BENCHMARK_MAIN();
