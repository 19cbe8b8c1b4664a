// The expert computation beside dense products of the same arithmetic.
//
// RaggedDot up and down (E experts, R rows in all) does the floating-point
// operations of two dense products; it loses time to small groups and to
// reading E matrices instead of one. Two ratios of speeds, measured alternating
// in this process:
//   of_dense  beside R rows times one matrix [M, H], which stays in the cache
//   of_wide   beside R / E rows times one matrix [M, E * H]: as much arithmetic
//             and as many bytes of weights
//
// BM_Served measures RaggedDot alone for any type, with weights as a router
// serves them and any number of threads; ./bench.sh sets its rates beside those
// of machine_benchmark.

#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "services/base/parallel.h"
#include "services/base/random.h"
#include "services/ops/attention.h"
#include "services/ops/cast.h"
#include "services/ops/dropout.h"
#include "services/ops/elementwise.h"
#include "services/ops/int8_panel.h"
#include "services/ops/layer_norm.h"
#include "services/ops/matmul.h"
#include "services/ops/ragged_dot.h"
#include "tests/testing/panels.h"

namespace gshard {
namespace {

constexpr int64_t kExperts = 16;
constexpr int64_t kRows = 1024;
constexpr int64_t kWidth = 512;    // M
constexpr int64_t kHidden = 2048;  // H

Tensor Random(Dims dims, uint64_t key) {
  Tensor tensor(ElementType::kFloat32, std::move(dims));
  for (int64_t i = 0; i < tensor.size(); ++i) {
    tensor.f32()[i] = RandomUniform(key, i) - 0.5f;
  }
  return tensor;
}

// Rows per expert: equal, or proportional to 1 / (e + 1).
Tensor GroupSizes(bool zipf, int64_t experts = kExperts, int64_t rows = kRows) {
  std::vector<double> shares(experts, 1.0 / experts);
  if (zipf) {
    double sum = 0.0;
    for (int64_t e = 0; e < experts; ++e) sum += 1.0 / (e + 1);
    for (int64_t e = 0; e < experts; ++e) shares[e] = 1.0 / (e + 1) / sum;
  }
  Tensor sizes(ElementType::kInt32, {experts});
  int32_t rest = rows;
  for (int64_t e = experts - 1; e >= 0; --e) {
    sizes.i32()[e] = e == 0 ? rest : static_cast<int32_t>(shares[e] * rows);
    rest -= sizes.i32()[e];
  }
  return sizes;
}

// CPU time of this thread, which other processes disturb less than wall-clock
// time; our kernels use no other threads.
double ThreadSeconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) +
         static_cast<double>(time.tv_nsec) * 1e-9;
}

template <typename Function>
double Seconds(Function function) {
  const double start = ThreadSeconds();
  function();
  return ThreadSeconds() - start;
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2,
                   values.end());
  return values[values.size() / 2];
}

// Benchmarks `ragged`, and times `dense` and `wide` in each iteration as well.
template <typename Ragged, typename Dense, typename Wide>
void RunBeside(benchmark::State& state, double flops, Ragged ragged,
               Dense dense, Wide wide) {
  ragged();
  dense();
  wide();
  std::vector<double> ragged_seconds, dense_seconds, wide_seconds;
  for (auto _ : state) {
    ragged_seconds.push_back(Seconds(ragged));
    dense_seconds.push_back(Seconds(dense));
    wide_seconds.push_back(Seconds(wide));
    state.SetIterationTime(ragged_seconds.back());
  }
  const double ragged_median = Median(ragged_seconds);
  const double dense_median = Median(dense_seconds);
  const double wide_median = Median(wide_seconds);
  state.counters["gflops"] = flops / ragged_median / 1e9;
  state.counters["dense_gflops"] = flops / dense_median / 1e9;
  state.counters["wide_gflops"] = flops / wide_median / 1e9;
  state.counters["of_dense"] = dense_median / ragged_median;
  state.counters["of_wide"] = wide_median / ragged_median;
}

void BM_ExpertForward(benchmark::State& state) {
  InitCompute();
  const Tensor sizes = GroupSizes(state.range(0) != 0);
  const Tensor rows = Random({kRows, kWidth}, 1);
  const Tensor up = Random({kExperts, kWidth, kHidden}, 2);
  const Tensor down = Random({kExperts, kHidden, kWidth}, 3);
  Tensor hidden(ElementType::kFloat32, {kRows, kHidden});
  Tensor out(ElementType::kFloat32, {kRows, kWidth});
  RunBeside(
      state, 4.0 * kRows * kWidth * kHidden,
      [&] {
        benchmark::DoNotOptimize(
            RaggedDot(RaggedDot(rows, up, sizes), down, sizes));
      },
      [&] {
        Matmul({.m = kRows, .n = kHidden, .k = kWidth}, rows.f32(), up.f32(),
               hidden.f32());
        Matmul({.m = kRows, .n = kWidth, .k = kHidden}, hidden.f32(),
               down.f32(), out.f32());
      },
      [&] {
        Matmul({.m = kRows / kExperts, .n = kExperts * kHidden, .k = kWidth},
               rows.f32(), up.f32(), hidden.f32());
        Matmul({.m = kRows / kExperts, .n = kExperts * kWidth, .k = kHidden},
               hidden.f32(), down.f32(), out.f32());
      });
}
BENCHMARK(BM_ExpertForward)
    ->ArgName("zipf")
    ->Arg(0)
    ->Arg(1)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

void BM_ExpertBackward(benchmark::State& state) {
  InitCompute();
  const Tensor sizes = GroupSizes(state.range(0) != 0);
  const Tensor rows = Random({kRows, kWidth}, 1);
  const Tensor up = Random({kExperts, kWidth, kHidden}, 2);
  const Tensor dhidden = Random({kRows, kHidden}, 3);
  Tensor drows(ElementType::kFloat32, {kRows, kWidth});
  Tensor dup(ElementType::kFloat32, {kExperts, kWidth, kHidden});
  RunBeside(
      state, 4.0 * kRows * kWidth * kHidden,
      [&] {
        benchmark::DoNotOptimize(RaggedDotRowsGradient(dhidden, up, sizes));
        benchmark::DoNotOptimize(
            RaggedDotWeightsGradient(rows, dhidden, sizes));
      },
      [&] {
        Matmul({.m = kRows, .n = kWidth, .k = kHidden, .transpose_b = true},
               dhidden.f32(), up.f32(), drows.f32());
        Matmul({.m = kWidth, .n = kHidden, .k = kRows, .transpose_a = true},
               rows.f32(), dhidden.f32(), dup.f32());
      },
      [&] {
        // The gradients with respect to R / E rows and to [M, E * H].
        Matmul({.m = kRows / kExperts,
                .n = kWidth,
                .k = kExperts * kHidden,
                .transpose_b = true},
               dhidden.f32(), up.f32(), drows.f32());
        Matmul({.m = kWidth,
                .n = kExperts * kHidden,
                .k = kRows / kExperts,
                .transpose_a = true},
               rows.f32(), dhidden.f32(), dup.f32());
      });
}
BENCHMARK(BM_ExpertBackward)
    ->ArgName("zipf")
    ->Arg(0)
    ->Arg(1)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

enum Sizes : int64_t { kEven, kZipf, kOneToFour };

// Rows of each expert: `mean` on average, or 1 to 4.
Tensor SizesOf(Sizes kind, int64_t experts, int64_t mean) {
  if (kind == kZipf) return GroupSizes(true, experts, mean * experts);
  Tensor sizes(ElementType::kInt32, {experts});
  for (int64_t e = 0; e < experts; ++e) {
    sizes.i32()[e] = static_cast<int32_t>(kind == kEven ? mean : 1 + e % 4);
  }
  return sizes;
}

// Weights [E, rows, columns] in the form in which routers serve them.
Tensor Served(ElementType type, int64_t experts, int64_t rows, int64_t columns,
              uint64_t key) {
  const Tensor weights = Random({experts, rows, columns}, key);
  if (type != ElementType::kInt8) {
    return InPanels(Cast(weights, type), experts, rows);
  }
  Tensor panels = NewInt8Panels(weights.dims(), experts, rows);
  for (int64_t e = 0; e < experts; ++e) {
    RoundMatrix(weights.Rows(e, e + 1).Reshaped({rows, columns}), e,
                /*transposed=*/false, panels);
  }
  return panels;
}

void BM_Served(benchmark::State& state, ElementType type, int64_t bytes) {
  InitCompute();
  const int64_t E = state.range(1);
  const Tensor sizes =
      SizesOf(static_cast<Sizes>(state.range(0)), E, state.range(2));
  const int64_t R = std::accumulate(sizes.i32(), sizes.i32() + E, int64_t{0});
  const Tensor rows = Random({R, kWidth}, 1);
  const Tensor up = Served(type, E, kWidth, kHidden, 2);
  const Tensor down = Served(type, E, kHidden, kWidth, 3);
  // The int8 product rounds its rows itself.
  const auto rounded = [&](const Tensor& x) {
    return type == ElementType::kBFloat16 ? Cast(x, type) : x;
  };
  SetComputeThreads(static_cast<int>(state.range(3)));
  for (auto _ : state) {
    const Tensor hidden = RaggedDot(rounded(rows), up, sizes);
    benchmark::DoNotOptimize(RaggedDot(rounded(hidden), down, sizes));
  }
  SetComputeThreads(1);
  const auto rate = [&](double amount) {
    return benchmark::Counter(1e-9 * amount,
                              benchmark::Counter::kIsIterationInvariantRate);
  };
  state.counters["gflops"] = rate(4.0 * R * kWidth * kHidden);
  state.counters["GB/s"] = rate(2.0 * E * kWidth * kHidden * bytes);
}
void ServedShapes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"sizes", "experts", "rows", "threads"})
      ->ArgsProduct({{kEven}, {16}, {64}, {1, 2}})
      ->ArgsProduct({{kZipf}, {64}, {16}, {1, 2}})
      ->ArgsProduct({{kOneToFour}, {64}, {2}, {1, 2}})
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
}
BENCHMARK_CAPTURE(BM_Served, float32, ElementType::kFloat32, 4)
    ->Apply(ServedShapes);
BENCHMARK_CAPTURE(BM_Served, bfloat16, ElementType::kBFloat16, 2)
    ->Apply(ServedShapes);
BENCHMARK_CAPTURE(BM_Served, int8, ElementType::kInt8, 1)->Apply(ServedShapes);

// The other operators of a layer, on [1024, 512].
void BM_LayerNorm(benchmark::State& state) {
  const Tensor x = Random({kRows, kWidth}, 1);
  const Tensor scale = Random({kWidth}, 2), bias = Random({kWidth}, 3);
  for (auto _ : state) {
    benchmark::DoNotOptimize(LayerNorm(x, scale, bias, 1e-6f));
  }
  state.SetBytesProcessed(state.iterations() * 2 * x.bytes());
}
BENCHMARK(BM_LayerNorm)->Unit(benchmark::kMicrosecond);

void BM_LayerNormGradient(benchmark::State& state) {
  const Tensor x = Random({kRows, kWidth}, 1), dy = Random({kRows, kWidth}, 4);
  const Tensor scale = Random({kWidth}, 2), bias = Random({kWidth}, 3);
  const LayerNormResult result = LayerNorm(x, scale, bias, 1e-6f);
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        LayerNormGradient(x, scale, result.mean, result.inverse_std, dy));
  }
  state.SetBytesProcessed(state.iterations() * 3 * x.bytes());
}
BENCHMARK(BM_LayerNormGradient)->Unit(benchmark::kMicrosecond);

void BM_Add(benchmark::State& state) {
  const Tensor x = Random({kRows, kWidth}, 1), y = Random({kRows, kWidth}, 2);
  for (auto _ : state) benchmark::DoNotOptimize(Add(x, y));
  state.SetBytesProcessed(state.iterations() * 3 * x.bytes());
}
BENCHMARK(BM_Add)->Unit(benchmark::kMicrosecond);

void BM_Dropout(benchmark::State& state) {
  const Tensor x = Random({kRows, kWidth}, 1);
  for (auto _ : state) benchmark::DoNotOptimize(Dropout(x, 0.1f, 7));
  state.SetBytesProcessed(state.iterations() * 2 * x.bytes());
}
BENCHMARK(BM_Dropout)->Unit(benchmark::kMicrosecond);

// 8 heads of width 64; always 1024 rows, whatever the length.
struct AttentionInputs {
  explicit AttentionInputs(int64_t length)
      : q(Random({kRows / length, length, 8, 64}, 1)),
        k(Random(q.dims(), 2)),
        v(Random(q.dims(), 3)),
        lengths(ElementType::kInt32, {q.dim(0)}) {
    std::fill_n(lengths.i32(), lengths.size(), static_cast<int32_t>(length));
  }
  double Flops() const { return 4.0 * q.size() * q.dim(1); }

  Tensor q, k, v, lengths;
};

void BM_Attention(benchmark::State& state) {
  const AttentionInputs in(state.range(0));
  const AttentionOptions options{.scale = 0.125f,
                                 .dropout_rate = state.range(1) * 0.1f};
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        Attention(in.q, in.k, in.v, in.lengths, options, true));
  }
  state.counters["gflops"] = benchmark::Counter(
      in.Flops() * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_Attention)
    ->ArgNames({"length", "dropout"})
    ->Args({16, 0})
    ->Args({32, 0})
    ->Args({32, 1})
    ->Args({64, 0})
    ->Args({256, 0})
    ->Args({1024, 0})
    ->Unit(benchmark::kMicrosecond);

void BM_AttentionGradient(benchmark::State& state) {
  const AttentionInputs in(state.range(0));
  const AttentionOptions options{.scale = 0.125f,
                                 .dropout_rate = state.range(1) * 0.1f};
  const Tensor statistics =
      Attention(in.q, in.k, in.v, in.lengths, options, true).statistics;
  for (auto _ : state) {
    benchmark::DoNotOptimize(AttentionGradient(in.q, in.k, in.v, in.lengths,
                                               options, statistics, in.q));
  }
  state.counters["gflops"] = benchmark::Counter(
      2e-9 * in.Flops(), benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_AttentionGradient)
    ->ArgNames({"length", "dropout"})
    ->Args({16, 0})
    ->Args({32, 0})
    ->Args({32, 1})
    ->Args({64, 0})
    ->Args({256, 0})
    ->Args({1024, 0})
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace gshard

BENCHMARK_MAIN();
