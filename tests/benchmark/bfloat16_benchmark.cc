// Compares bfloat16 products with float32 ones, alternating in one process: the
// experts of a layer, forward and backward, and a dense product with a table
// stored row by row, as for logits. Rows are cast on each call, as layers do;
// weights are rounded beforehand, as sessions do. `ratio` is float32 time over
// bfloat16 time. Where served weights lie in panels, `panels_ratio` is
// row-major bfloat16 time over panel time.

#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "services/base/random.h"
#include "services/ops/cast.h"
#include "services/ops/einsum.h"
#include "services/ops/matmul.h"
#include "services/ops/panel.h"
#include "services/ops/ragged_dot.h"
#include "tests/testing/panels.h"

namespace gshard {
namespace {

constexpr auto kLow = ElementType::kBFloat16;

Tensor Random(Dims dims, uint64_t key) {
  Tensor tensor(ElementType::kFloat32, std::move(dims));
  for (int64_t i = 0; i < tensor.size(); ++i) {
    tensor.f32()[i] = RandomUniform(key, i) - 0.5f;
  }
  return tensor;
}

// CPU time of this thread, which other processes disturb less than wall-clock
// time; our kernels use no other threads.
template <typename Function>
double Seconds(Function function) {
  const auto now = [] {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) +
           static_cast<double>(time.tv_nsec) * 1e-9;
  };
  const double start = now();
  function();
  return now() - start;
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2,
                   values.end());
  return values[values.size() / 2];
}

// `run(low)` computes in bfloat16 or float32; `panels`, if not null, computes
// with weights in panels.
template <typename Run>
void Compare(benchmark::State& state, double flops, Run run,
             const std::function<void()>& panels = nullptr) {
  InitCompute();
  run(false);
  run(true);
  std::vector<double> whole, low, packed;
  for (auto _ : state) {
    whole.push_back(Seconds([&] { run(false); }));
    low.push_back(Seconds([&] { run(true); }));
    if (panels) packed.push_back(Seconds(panels));
    state.SetIterationTime(low.back());
  }
  if (panels) {
    state.counters["panels_gflops"] = flops / Median(packed) / 1e9;
    state.counters["panels_ratio"] = Median(low) / Median(packed);
  }
  state.counters["f32_gflops"] = flops / Median(whole) / 1e9;
  state.counters["bf16_gflops"] = flops / Median(low) / 1e9;
  state.counters["ratio"] = Median(whole) / Median(low);
}

// E experts [M, H] with an equal number of rows each, R in all.
struct Experts {
  explicit Experts(const benchmark::State& state)
      : E(state.range(0)),
        M(state.range(1)),
        H(state.range(2)),
        R(state.range(3)),
        sizes(ElementType::kInt32, {E}),
        rows(Random({R, M}, 1)),
        up(Random({E, M, H}, 2)),
        down(Random({E, H, M}, 3)),
        dhidden(Random({R, H}, 4)) {
    std::fill_n(sizes.i32(), E, static_cast<int32_t>(R / E));
  }

  const int64_t E, M, H, R;
  Tensor sizes, rows, up, down, dhidden;
};

void Shapes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"E", "M", "H", "R"})
      ->Args({8, 128, 384, 1536})  // the demo's training
      ->Args({8, 128, 384, 32})    // ... and its translation
      ->Args({16, 512, 2048, 64})  // a few rows per expert
      ->Args({16, 512, 2048, 1024})
      ->Args({8, 1024, 4096, 2048})
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

void BM_Experts(benchmark::State& state) {
  const Experts in(state);
  const Tensor low_up = Cast(in.up, kLow), low_down = Cast(in.down, kLow);
  const auto run_low = [&](const Tensor& up, const Tensor& down) {
    const Tensor hidden =
        Cast(RaggedDot(Cast(in.rows, kLow), up, in.sizes), kLow);
    benchmark::DoNotOptimize(RaggedDot(hidden, down, in.sizes));
  };
  std::function<void()> run_panels;
  if (HasPanels()) {
    run_panels = [&, up = InPanels(low_up, in.E, in.M),
                  down = InPanels(low_down, in.E, in.H)] { run_low(up, down); };
  }
  Compare(
      state, 4.0 * in.R * in.M * in.H,
      [&](bool low) {
        if (low) return run_low(low_up, low_down);
        const Tensor hidden = RaggedDot(in.rows, in.up, in.sizes);
        benchmark::DoNotOptimize(RaggedDot(hidden, in.down, in.sizes));
      },
      run_panels);
}
BENCHMARK(BM_Experts)->Apply(Shapes);

// The gradients of the first product.
void BM_ExpertsGradient(benchmark::State& state) {
  const Experts in(state);
  const Tensor low_up = Cast(in.up, kLow), low_rows = Cast(in.rows, kLow);
  Compare(state, 4.0 * in.R * in.M * in.H, [&](bool low) {
    const Tensor dhidden = low ? Cast(in.dhidden, kLow) : in.dhidden;
    benchmark::DoNotOptimize(
        RaggedDotRowsGradient(dhidden, low ? low_up : in.up, in.sizes));
    benchmark::DoNotOptimize(
        RaggedDotWeightsGradient(low ? low_rows : in.rows, dhidden, in.sizes));
  });
}
BENCHMARK(BM_ExpertsGradient)->Apply(Shapes);

void BM_Logits(benchmark::State& state) {
  const int64_t N = state.range(0), M = state.range(1), V = state.range(2);
  const Tensor rows = Random({N, M}, 1), table = Random({V, M}, 2);
  const Tensor low_table = Cast(table, kLow);
  const EinsumSpec spec = *ParseEinsum("nm,vm->nv");
  Compare(state, 2.0 * N * M * V, [&](bool low) {
    benchmark::DoNotOptimize(low ? Einsum(spec, Cast(rows, kLow), low_table)
                                 : Einsum(spec, rows, table));
  });
}
BENCHMARK(BM_Logits)
    ->ArgNames({"N", "M", "V"})
    ->Args({768, 128, 4000})
    ->Args({4, 128, 4000})
    ->Args({1024, 512, 32000})
    ->Args({4, 512, 32000})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

void BM_Cast(benchmark::State& state) {
  const Tensor x = Random({state.range(0), 512}, 1);
  for (auto _ : state) benchmark::DoNotOptimize(Cast(x, kLow));
  state.SetBytesProcessed(state.iterations() * x.size() * 6);
}
BENCHMARK(BM_Cast)->Arg(1024)->Arg(65536)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace gshard

BENCHMARK_MAIN();
