// Training in one process, on the shapes that PyTorch was measured with: 2 + 2
// layers, M 256, H 1024, 4 heads, V 8000, 16 experts in every other layer, 32
// sentences of 32 tokens a side, float32 or bfloat16, Adam, by the number of
// compute threads. Reports target tokens per second (PyTorch 1.13 on one thread
// of a 3.7 GHz Zen 4 core: 1,687), and the useful arithmetic of a step as a
// share of this process's own matrix rate in float32.
//
// BM_Gradients is a step without the optimizer, of a smaller model, with a
// growing number of experts and a fixed number of tokens.

#include <benchmark/benchmark.h>

#include <chrono>

#include "services/base/check.h"
#include "services/base/parallel.h"
#include "services/base/random.h"
#include "services/ops/matmul.h"
#include "services/train/microbatch.h"
#include "tests/reference/local_trainer.h"
#include "tests/testing/tiny_model.h"

namespace gshard {
namespace {

constexpr int64_t kSentences = 32, kLength = 32;

TrainingJob BenchmarkJob(int64_t experts, bool bf16) {
  TrainingJob job;
  job.name = "benchmark";
  ModelConfig& model = job.model;
  model.encoder_layers = model.decoder_layers = 2;
  model.model_width = 256;
  model.ffn_width = model.expert_width = 1024;
  model.heads = 4;
  model.head_width = 64;
  model.experts = experts;
  if (bf16) model.compute_type = ComputeType::kBFloat16;
  model.source_vocabulary_size = model.target_vocabulary_size = 8000;
  model.shared_vocabulary = true;
  model.dropout = {.input = 0, .residual = 0, .attention = 0};
  model.gate.training_policy = SecondExpertPolicy::kAll;
  job.microbatches_per_step = 1;
  job.optimizer = AdamConfig();
  job.schedule = {.multiplier = 0.01, .warmup_steps = 100};
  return job;
}

// All sentences have the same length; ids are drawn by (step, index).
Batch MakeBenchmarkBatch(int64_t step, int64_t vocabulary) {
  const auto ids = [&](uint64_t salt) {
    Tensor tensor(ElementType::kInt32, {kSentences, kLength});
    for (int64_t i = 0; i < tensor.size(); ++i) {
      tensor.i32()[i] = 4 + RandomBelow(FoldIn(salt, step), i, vocabulary - 4);
    }
    return tensor;
  };
  Tensor lengths(ElementType::kInt32, {kSentences});
  std::fill_n(lengths.i32(), kSentences, static_cast<int32_t>(kLength));
  return {.source = ids(1),
          .source_lengths = lengths,
          .target_input = ids(2),
          .target_labels = ids(3),
          .target_lengths = lengths,
          .source_tokens = kSentences * kLength,
          .target_tokens = kSentences * kLength};
}

// Floating-point operations of forward and backward, counted as for PyTorch:
// products with weights and inside attention.
double StepFlops(const ModelConfig& model) {
  const double M = model.model_width, H = model.ffn_width;
  const double L = model.encoder_layers, V = model.target_vocabulary_size;
  const double moe = model.NumMoeLayers(model.encoder_layers);
  const double ffn =
      (L - moe) * 2 * M * H + moe * (2 * 2 * M * H + M * model.experts);
  const double T = kSentences * kLength;
  const double encoder = T * (L * 4 * M * M + ffn) + T * kLength * 2 * M * L;
  const double decoder = T * (L * 6 * M * M + ffn + V * M) + T * L * 2 * M * M +
                         T * 2 * kLength * 2 * M * L;
  return 3 * 2 * (encoder + decoder);
}

// The machine's rate on one big product, as a ceiling.
double MatmulFlopsPerSecond() {
  constexpr int64_t n = 1024;
  const std::vector<float> a(n * n, 0.5f), b(n * n, 0.25f);
  std::vector<float> c(n * n);
  double best = 0.0;
  for (int i = 0; i < 8; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    Matmul({.m = n, .n = n, .k = n}, a.data(), b.data(), c.data());
    const std::chrono::duration<double> seconds =
        std::chrono::steady_clock::now() - begin;
    best = std::max(best, 2.0 * n * n * n / seconds.count());
  }
  return best;
}

void BM_TrainingStep(benchmark::State& state) {
  InitCompute();
  SetComputeThreads(static_cast<int>(state.range(1)));
  const TrainingJob job = BenchmarkJob(state.range(0), state.range(2) != 0);
  auto trainer = LocalTrainer::Create(job);
  if (!trainer.ok()) {
    state.SkipWithError(trainer.status().ToString().c_str());
    return;
  }
  const auto source = [&](int64_t step, int64_t) {
    return MakeBenchmarkBatch(step, job.model.target_vocabulary_size);
  };
  double ceiling = MatmulFlopsPerSecond();
  int64_t steps = 0;
  for (auto _ : state) {
    const auto result = (*trainer)->Step(source);
    if (!result.ok()) {
      state.SkipWithError(result.status().ToString().c_str());
      return;
    }
    ++steps;
  }
  ceiling = std::max(ceiling, MatmulFlopsPerSecond());
  state.counters["tokens/s"] = benchmark::Counter(kSentences * kLength * steps,
                                                  benchmark::Counter::kIsRate);
  const double flops = StepFlops(job.model) * static_cast<double>(steps);
  state.counters["gflops"] =
      benchmark::Counter(1e-9 * flops, benchmark::Counter::kIsRate);
  state.counters["useful_share"] =
      benchmark::Counter(flops / ceiling, benchmark::Counter::kIsRate);
  state.counters["matmul_gflops"] = ceiling * 1e-9;
}
BENCHMARK(BM_TrainingStep)
    ->ArgNames({"experts", "threads", "bf16"})
    ->ArgsProduct({{0, 16}, {1, 2, 4, 8, 16}, {0, 1}})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime()
    ->MinTime(3.0);

void BM_Gradients(benchmark::State& state) {
  InitCompute();
  SetComputeThreads(static_cast<int>(state.range(1)));
  TrainingJob job = BenchmarkJob(state.range(0), /*bf16=*/false);
  job.model.model_width = 128;
  job.model.ffn_width = job.model.expert_width = 512;
  job.model.head_width = 32;
  const MicrobatchRunner runner(job.model,
                                *BuildTrainProgram(job.model, LossConfig()));
  const TensorMap parameters = TinyParameters(job.model, 1);
  const Batch batch = MakeBenchmarkBatch(1, job.model.target_vocabulary_size);
  const auto step = [&] { CHECK(runner.Run(batch, 1, 1, 0, parameters).ok()); };
  step();  // maps the memory that the others reuse
  for (auto _ : state) step();
  SetComputeThreads(1);
}
BENCHMARK(BM_Gradients)
    ->ArgNames({"experts", "threads"})
    ->ArgsProduct({{128, 512, 2048}, {1, 2}})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace gshard

BENCHMARK_MAIN();
