// Collectives between threads and over gloo, beside memcpy, the ceiling of any
// data movement on one machine.
//
// bytes_per_second counts the bytes that all members send. For an all-reduce
// that is 2 (n - 1) / n of the tensor each; with n members on fewer cores the
// time includes all members' sums. For latency, see the time of */bytes:4.

#include <benchmark/benchmark.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "services/base/check.h"
#include "services/base/status_macros.h"
#include "services/collectives/collectives.h"
#include "tests/services/collectives/gloo_world.h"
#include "tests/services/collectives/local_world.h"

namespace gshard {
namespace {

using Device = std::function<absl::Status(World&)>;

absl::Status RunOnLocal(int size, const Device& device) {
  return RunOnDevices(size, device);
}

// Threads of this process that communicate over 127.0.0.1 as processes would.
absl::Status RunOnGloo(int size, const Device& device) {
  std::string folder =
      (std::filesystem::temp_directory_path() / "gshard_gloo.XXXXXX").string();
  CHECK(mkdtemp(folder.data()) != nullptr);
  const absl::Status status =
      RunOnDevices(size, [&](World& local) -> absl::Status {
        GlooOptions options;
        options.rank = local.rank();
        options.size = size;
        options.rendezvous_folder = folder;
        ASSIGN_OR_RETURN(const auto world, GlooWorld::Create(options));
        return device(*world);
      });
  std::filesystem::remove_all(folder);
  return status;
}

using Run = absl::Status (*)(int, const Device&);
using Collective = std::function<absl::Status(Communicator&, const Tensor&)>;

// Calls `collective` on every member for each benchmark iteration. Rank 0
// drives: before each round, an all-reduce tells the others whether to go on.
void Measure(benchmark::State& state, Run run, const Collective& collective) {
  const int members = static_cast<int>(state.range(0));
  const Tensor tensor =
      Tensor::Zeros(ElementType::kFloat32, {state.range(1) / 4});
  constexpr int kRounds = 50;
  const absl::Status status = run(members, [&](World& world) -> absl::Status {
    ASSIGN_OR_RETURN(Communicator* const comm, WholeGroup(world));
    const Tensor own = tensor.Clone();
    const auto rounds = [&]() -> absl::Status {
      for (int i = 0; i < kRounds; ++i) {
        RETURN_IF_ERROR(collective(*comm, own));
      }
      return absl::OkStatus();
    };
    const auto go_on = [&](bool more) -> absl::StatusOr<bool> {
      ASSIGN_OR_RETURN(const Tensor votes,
                       AllReduce(*comm, Tensor::Ints({1}, {more})));
      return votes.i32()[0] > 0;
    };
    if (world.rank() == 0) {
      while (state.KeepRunningBatch(kRounds)) {
        RETURN_IF_ERROR(go_on(true).status());
        RETURN_IF_ERROR(rounds());
      }
      return go_on(false).status();
    }
    for (;;) {
      ASSIGN_OR_RETURN(const bool more, go_on(false));
      if (!more) return absl::OkStatus();
      RETURN_IF_ERROR(rounds());
    }
  });
  if (!status.ok()) state.SkipWithError(status.ToString().c_str());
}

void AllReduceOver(benchmark::State& state, Run run) {
  Measure(state, run, [](Communicator& comm, const Tensor& tensor) {
    return AllReduce(comm, tensor).status();
  });
  const int64_t n = state.range(0);
  state.SetBytesProcessed(state.iterations() * 2 * (n - 1) * state.range(1));
}

void AllToAllOver(benchmark::State& state, Run run) {
  Measure(state, run, [](Communicator& comm, const Tensor& tensor) {
    return AllToAll(comm, tensor, 0, 0).status();
  });
  const int64_t n = state.range(0);
  state.SetBytesProcessed(state.iterations() * (n - 1) * state.range(1));
}

// An exchange of one byte per pair.
void SmallExchangeOver(benchmark::State& state, Run run) {
  Measure(state, run, [](Communicator& comm, const Tensor&) {
    std::vector<char> out(comm.size()), in(comm.size());
    std::vector<SendBytes> send;
    std::vector<ReceiveBytes> receive;
    for (int r = 0; r < comm.size(); ++r) {
      send.push_back({&out[r], 1});
      receive.push_back({&in[r], 1});
    }
    return comm.Exchange(send, receive);
  });
}

void Memcpy(benchmark::State& state) {
  const std::vector<char> from(state.range(0), 1);
  std::vector<char> to(state.range(0));
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), from.size());
    benchmark::DoNotOptimize(to.data());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

void Sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"members", "bytes"})->UseRealTime();
  for (const int members : {2, 4, 8}) {
    for (const int bytes : {64 << 10, 1 << 20, 16 << 20}) {
      benchmark->Args({members, bytes});
    }
  }
}

void Members(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"members", "bytes"})->UseRealTime();
  for (const int members : {2, 4, 8}) benchmark->Args({members, 4});
}

BENCHMARK(Memcpy)->ArgName("bytes")->Arg(64 << 10)->Arg(1 << 20)->Arg(16 << 20);
BENCHMARK_CAPTURE(SmallExchangeOver, local, RunOnLocal)->Apply(Members);
BENCHMARK_CAPTURE(SmallExchangeOver, gloo, RunOnGloo)->Apply(Members);
BENCHMARK_CAPTURE(AllReduceOver, local, RunOnLocal)->Apply(Sizes);
BENCHMARK_CAPTURE(AllReduceOver, gloo, RunOnGloo)->Apply(Sizes);
BENCHMARK_CAPTURE(AllToAllOver, local, RunOnLocal)->Apply(Sizes);
BENCHMARK_CAPTURE(AllToAllOver, gloo, RunOnGloo)->Apply(Sizes);

}  // namespace
}  // namespace gshard

BENCHMARK_MAIN();
