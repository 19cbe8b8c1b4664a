// What it costs to route tokens, beside what it costs to compute their experts.
//
// A layer of S tokens in one group with capacity 2S/E, so that about 2S rows
// reach the experts whatever E is; M 512, H 2048, one thread.
//
//   gating_benchmark --benchmark_filter=Bookkeeping   gate + dispatch + combine
//
// Bookkeeping prints `share`: its time over that of the same rows' two expert
// products (RaggedDot) in the same process. Aim: below 0.10, and less than
// twice the time at E 2048 as at E 64. The gate's projection is not included:
// it is a matrix product like any other.

#include <benchmark/benchmark.h>

#include <chrono>
#include <map>

#include "services/base/check.h"
#include "services/moe/dispatch.h"
#include "services/moe/gating.h"
#include "services/ops/matmul.h"
#include "services/ops/ragged_dot.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

constexpr int64_t kTokens = 1024, kWidth = 512, kHidden = 2048;

struct Layer {
  explicit Layer(int64_t experts)
      : num_experts(experts),
        logits(RandomTensor({kTokens, experts}, 1, 2.0f)),
        x(RandomTensor({kTokens, kWidth}, 2)) {
    routing = Gate();
    plan = Plan();
    rows = *DispatchRows(x, plan.row_source);
  }

  Routing Gate() const {
    return *Top2Gating(logits, {}, {.second_expert = SecondExpert::kAll}, {});
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

// Seconds of one forward pass through the experts. Weights of 2048 experts are
// 16 GiB, so all experts share the first one's: for speed, every byte is still
// read from memory once per expert with 64 experts, and from cache beyond,
// which flatters the experts and so is hard on the bookkeeping.
double ExpertSeconds(const Layer& layer) {
  using Clock = std::chrono::steady_clock;
  const Tensor up = RandomTensor({1, kWidth, kHidden}, 3);
  const Tensor down = RandomTensor({1, kHidden, kWidth}, 4);
  double best = 1e9;
  for (int repeat = 0; repeat < 3; ++repeat) {
    const auto start = Clock::now();
    int64_t begin = 0;
    for (int64_t e = 0; e < layer.num_experts; ++e) {
      const int64_t n = layer.plan.group_sizes.i32()[e];
      if (n == 0) continue;
      const Tensor size = Tensor::Ints({1}, {static_cast<int32_t>(n)});
      const Tensor hidden =
          RaggedDot(layer.rows.Rows(begin, begin + n), up, size);
      benchmark::DoNotOptimize(RaggedDot(hidden, down, size));
      begin += n;
    }
    best = std::min(
        best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

// The expert time of each E, measured once.
double ExpertSecondsOnce(const Layer& layer) {
  static std::map<int64_t, double> seconds;
  const auto [entry, is_new] = seconds.try_emplace(layer.num_experts, 0.0);
  if (is_new) entry->second = ExpertSeconds(layer);
  return entry->second;
}

void Bookkeeping(benchmark::State& state) {
  Layer layer(state.range(0));
  const double expert_seconds = ExpertSecondsOnce(layer);
  double seconds = 0.0;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    layer.routing = layer.Gate();
    layer.plan = layer.Plan();
    const Tensor rows = *DispatchRows(layer.x, layer.plan.row_source);
    const Tensor y =
        *Combine(layer.rows, layer.plan.row_source, layer.routing.weight);
    benchmark::DoNotOptimize(rows.raw());
    benchmark::DoNotOptimize(y.raw());
    seconds +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
            .count();
  }
  state.counters["rows"] = static_cast<double>(layer.rows.dim(0));
  state.counters["experts_ms"] = 1e3 * expert_seconds;
  state.counters["share"] =
      seconds / static_cast<double>(state.iterations()) / expert_seconds;
}

void Gating(benchmark::State& state) {
  const Layer layer(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(layer.Gate().slot.raw());
}

void GatingWithoutLosses(benchmark::State& state) {
  const Layer layer(state.range(0));
  const GatingOptions options = {
      .second_expert = SecondExpert::kAll, .drop = false, .losses = false};
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
BENCHMARK(Bookkeeping)->Apply(ExpertCounts);
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
