// The cost of routing tokens, relative to computing their experts.
//
// A layer of S tokens in one group with capacity 2S/E, so about 2S rows reach
// the experts for any E; M 512, H 2048, one thread unless stated otherwise.
//
//   gating_benchmark --benchmark_filter=Bookkeeping   gate + dispatch + combine
//
// Bookkeeping prints `share`: its time over that of two expert products
// (RaggedDot) of the same rows in the same process. Aim: below 0.10, and less
// than twice the time at E 2048 as at E 64. `share` excludes the gate's
// projection, a matrix product like any other; `projected_share` includes it.
//
// ForwardBackward is the whole layer as in training, including the projection.

#include <benchmark/benchmark.h>

#include <chrono>
#include <map>
#include <vector>

#include "services/base/parallel.h"
#include "services/moe/dispatch.h"
#include "services/moe/gating.h"
#include "services/ops/cast.h"
#include "services/ops/elementwise.h"
#include "services/ops/matmul.h"
#include "services/ops/ragged_dot.h"
#include "tests/testing/panels.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

constexpr int64_t kTokens = 1024, kWidth = 512, kHidden = 2048;

struct Layer {
  explicit Layer(int64_t experts, int64_t tokens = kTokens,
                 int64_t width = kWidth)
      : num_experts(experts),
        logits(RandomTensor({tokens, experts}, 1, 2.0f)),
        x(RandomTensor({tokens, width}, 2)) {
    routing = Gate();
    plan = Plan();
    rows = *DispatchRows(x, plan.row_source);
  }

  Routing Gate() const {
    return *Top2Gating(logits, {}, {.second_expert = SecondExpertPolicy::kAll},
                       {});
  }
  DispatchPlan Plan() const {
    return *PlanDispatch(routing.expert, routing.slot, num_experts, 0);
  }

  int64_t num_experts;
  Tensor logits, x;
  Routing routing;
  DispatchPlan plan;
  Tensor rows;
};

// Seconds of one call.
template <typename Function>
double Seconds(Function function) {
  const auto start = std::chrono::steady_clock::now();
  function();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
      .count();
}

// Seconds of one forward pass through the experts. Weights of 2048 experts take
// 16 GiB, so all experts share those of the first. With 64 experts every byte
// is still read from memory once per expert; with more, from cache, which makes
// the experts look faster and so the share of the bookkeeping larger.
double ExpertSeconds(const Layer& layer, int64_t hidden, ElementType type) {
  const int64_t width = layer.x.dim(1);
  const auto weights = [&](int64_t rows, int64_t columns, uint64_t seed) {
    const Tensor random = RandomTensor({1, rows, columns}, seed);
    return type == ElementType::kFloat32
               ? random
               : InPanels(Cast(random, type), 1, rows);
  };
  const auto rounded = [&](const Tensor& x) {
    return type == ElementType::kFloat32 ? x : Cast(x, type);
  };
  const Tensor up = weights(width, hidden, 3), down = weights(hidden, width, 4);
  const Tensor rows = rounded(layer.rows);
  double best = 1e9;
  for (int repeat = 0; repeat < 3; ++repeat) {
    best = std::min(
        best, Seconds([&] {
          int64_t begin = 0;
          for (int64_t e = 0; e < layer.num_experts; ++e) {
            const int64_t n = layer.plan.group_sizes.i32()[e];
            if (n == 0) continue;
            const Tensor size = Tensor::Ints({1}, {static_cast<int32_t>(n)});
            const Tensor inner =
                RaggedDot(rows.Rows(begin, begin + n), up, size);
            benchmark::DoNotOptimize(RaggedDot(rounded(inner), down, size));
            begin += n;
          }
        }));
  }
  return best;
}

void Bookkeeping(benchmark::State& state) {
  const int64_t E = state.range(0), S = state.range(1), M = state.range(2);
  const ElementType type =
      state.range(4) != 0 ? ElementType::kBFloat16 : ElementType::kFloat32;
  SetComputeThreads(static_cast<int>(state.range(5)));
  Layer layer(E, S, M);
  // Measured once per shape, however often the benchmark function restarts.
  static std::map<std::vector<int64_t>, double>& of_experts =
      *new std::map<std::vector<int64_t>, double>;
  const auto [entry, is_new] = of_experts.try_emplace(
      {E, S, M, state.range(3), state.range(4), state.range(5)}, 0.0);
  if (is_new) entry->second = ExpertSeconds(layer, state.range(3), type);
  const Tensor gate = RandomTensor({M, E}, 5);
  Tensor projected(ElementType::kFloat32, {S, E});
  double seconds = 0.0, projection = 0.0;
  for (auto _ : state) {
    seconds += Seconds([&] {
      layer.routing = layer.Gate();
      layer.plan = layer.Plan();
      const Tensor rows = *DispatchRows(layer.x, layer.plan.row_source, type);
      const Tensor y =
          *Combine(layer.rows, layer.plan.row_source, layer.routing.weight);
      benchmark::DoNotOptimize(rows.raw());
      benchmark::DoNotOptimize(y.raw());
    });
    state.PauseTiming();
    projection += Seconds([&] {
      Matmul({.m = S, .n = E, .k = M}, layer.x.f32(), gate.f32(),
             projected.f32());
    });
    state.ResumeTiming();
  }
  SetComputeThreads(1);
  const double all = entry->second * static_cast<double>(state.iterations());
  state.counters["rows"] = static_cast<double>(layer.rows.dim(0));
  state.counters["experts_ms"] = 1e3 * entry->second;
  state.counters["share"] = seconds / all;
  state.counters["projected_share"] = (seconds + projection) / all;
}

void ForwardBackward(benchmark::State& state) {
  const int64_t E = state.range(0), S = state.range(1), M = state.range(2);
  const int64_t H = state.range(3);
  SetComputeThreads(static_cast<int>(state.range(4)));
  const Tensor x = RandomTensor({S, M}, 1), dy = RandomTensor({S, M}, 2);
  const Tensor gate = RandomTensor({M, E}, 3), up = RandomTensor({E, M, H}, 4),
               down = RandomTensor({E, H, M}, 5);
  const auto step = [&] {
    Tensor logits(ElementType::kFloat32, {S, E});
    Matmul({.m = S, .n = E, .k = M}, x.f32(), gate.f32(), logits.f32());
    const Routing routing = *Top2Gating(
        logits, {}, {.second_expert = SecondExpertPolicy::kAll}, {});
    const auto [source, sizes] =
        *PlanDispatch(routing.expert, routing.slot, E, 0);
    const Tensor rows = *DispatchRows(x, source);
    const Tensor hidden = Relu(RaggedDot(rows, up, sizes));
    const Tensor out = RaggedDot(hidden, down, sizes);
    benchmark::DoNotOptimize(*Combine(out, source, routing.weight));

    const CombineGradients d =
        *CombineGradient(dy, out, source, routing.weight);
    benchmark::DoNotOptimize(RaggedDotWeightsGradient(hidden, d.d_rows, sizes));
    const Tensor dhidden =
        ReluGradient(hidden, RaggedDotRowsGradient(d.d_rows, down, sizes));
    benchmark::DoNotOptimize(RaggedDotWeightsGradient(rows, dhidden, sizes));
    Tensor dx =
        *DispatchGradient(RaggedDotRowsGradient(dhidden, up, sizes), source, S);
    const Tensor dlogits =
        *GatingGradient(logits, routing, {}, d.d_weight, 0.01f, 0.0f);
    Tensor dgate(ElementType::kFloat32, {M, E});
    Matmul({.m = M, .n = E, .k = S, .transpose_a = true}, x.f32(),
           dlogits.f32(), dgate.f32());
    Matmul({.m = S, .n = M, .k = E, .transpose_b = true}, dlogits.f32(),
           gate.f32(), dx.f32(), /*accumulate=*/true);
    benchmark::DoNotOptimize(dgate.raw());
    benchmark::DoNotOptimize(dx.raw());
  };
  step();  // maps the memory that the others reuse
  for (auto _ : state) step();
  SetComputeThreads(1);
  state.counters["tokens/s"] =
      benchmark::Counter(S, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(ForwardBackward)
    ->ArgNames({"E", "S", "M", "H", "threads"})
    ->Args({128, 512, 512, 2048, 1})
    ->Args({128, 512, 512, 2048, 2})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

void Gating(benchmark::State& state) {
  const Layer layer(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(layer.Gate().slot.raw());
}

void GatingWithoutLosses(benchmark::State& state) {
  const Layer layer(state.range(0));
  const GatingOptions options = {.second_expert = SecondExpertPolicy::kAll,
                                 .drop = false,
                                 .losses = false};
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        Top2Gating(layer.logits, {}, options, {})->slot.raw());
  }
}

void GatingBackward(benchmark::State& state) {
  const Layer layer(state.range(0));
  const Tensor d_weight = RandomTensor({kTokens, 2}, 5);
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        GatingGradient(layer.logits, layer.routing, {}, d_weight, 0.01f, 0.001f)
            ->raw());
  }
}

void Plan(benchmark::State& state) {
  const Layer layer(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(layer.Plan().row_source.raw());
}

void Dispatch(benchmark::State& state) {
  const Layer layer(state.range(0));
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        DispatchRows(layer.x, layer.plan.row_source)->raw());
  }
}

void Combining(benchmark::State& state) {
  const Layer layer(state.range(0));
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        Combine(layer.rows, layer.plan.row_source, layer.routing.weight)
            ->raw());
  }
}

void ExpertCounts(benchmark::internal::Benchmark* benchmark) {
  for (const int64_t experts : {16, 64, 256, 1024, 2048}) {
    benchmark->Arg(experts);
  }
  benchmark->ArgName("E")->Unit(benchmark::kMicrosecond)->MinTime(0.2);
}
BENCHMARK(Bookkeeping)
    ->ArgNames({"E", "S", "M", "H", "bf16", "threads"})
    ->ArgsProduct(
        {{16, 64, 256, 1024, 2048}, {kTokens}, {kWidth}, {kHidden}, {0}, {1}})
    ->Args({2048, 2048, 1024, 8192, 1, 2})
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime()
    ->MinTime(0.2);
BENCHMARK(Gating)->Apply(ExpertCounts);
BENCHMARK(GatingWithoutLosses)->Apply(ExpertCounts);
BENCHMARK(GatingBackward)->Apply(ExpertCounts);
BENCHMARK(Plan)->Apply(ExpertCounts);
BENCHMARK(Dispatch)->Apply(ExpertCounts);
BENCHMARK(Combining)->Apply(ExpertCounts);

}  // namespace
}  // namespace gshard

int main(int argc, char** argv) {
  gshard::InitCompute();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
