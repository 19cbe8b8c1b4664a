// Optimizer updates of one expert matrix beside their ceiling: reading and
// writing the same arrays once. Each step updates every weight, however few
// tokens its expert saw.

#include <benchmark/benchmark.h>

#include <vector>

#include "absl/types/span.h"
#include "services/base/random.h"
#include "services/train/job_options.h"
#include "tests/services/train/initial_state.h"

namespace gshard {
namespace {

std::vector<float> RandomValues(int64_t size, uint64_t seed) {
  std::vector<float> values(size);
  for (int64_t i = 0; i < size; ++i) values[i] = RandomUniform(seed, i) - 0.5f;
  return values;
}

// w -= rate * g: the memory traffic that any optimizer needs.
void BM_PlainUpdate(benchmark::State& state) {
  const int64_t size = state.range(0) * state.range(1);
  std::vector<float> weight = RandomValues(size, 1);
  const std::vector<float> gradient = RandomValues(size, 2);
  for (auto _ : state) {
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) weight[i] -= 1e-9f * gradient[i];
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * size);
}

void Run(benchmark::State& state, const OptimizerConfig& config) {
  const std::vector<int64_t> dims = {state.range(0), state.range(1)};
  const int64_t size = dims[0] * dims[1];
  const auto made = MakeOptimizer(config);
  const Optimizer& optimizer = *made;
  std::vector<float> weight = RandomValues(size, 1);
  const std::vector<float> gradient = RandomValues(size, 2);
  std::vector<Tensor> tensors = InitialState(optimizer, dims);
  std::vector<absl::Span<float>> spans;
  for (Tensor& tensor : tensors) spans.push_back(tensor.span<float>());
  int64_t step = 0;
  for (auto _ : state) {
    optimizer.Update(dims, absl::MakeSpan(weight), gradient, 1.0, spans, ++step,
                     1e-6);
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * size);
}

void BM_Adafactor(benchmark::State& state) { Run(state, AdafactorConfig()); }
void BM_Adam(benchmark::State& state) { Run(state, AdamConfig()); }

BENCHMARK(BM_PlainUpdate)->ArgNames({"M", "H"})->Args({512, 2048});
BENCHMARK(BM_Adafactor)->ArgNames({"M", "H"})->Args({512, 2048});
BENCHMARK(BM_Adam)->ArgNames({"M", "H"})->Args({512, 2048});

}  // namespace
}  // namespace gshard

BENCHMARK_MAIN();
