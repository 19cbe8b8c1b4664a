// Measures the machine's ceilings, with which other benchmarks are compared.
//
// One product of 1024^3 on each thread, by oneDNN with weights in its preferred
// format (Onednn) and by our kernels with weights in panels (Ours): the better
// of the two is the rate of a type. Reading memory, copying it, and loopback
// TCP between two threads.

#include <arpa/inet.h>
#include <benchmark/benchmark.h>
#include <netinet/tcp.h>
#include <omp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <barrier>
#include <cstring>
#include <functional>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "services/base/check.h"
#include "services/ops/cast.h"
#include "services/ops/int8_panel.h"
#include "services/ops/matmul.h"
#include "services/ops/panel.h"
#include "tests/testing/panels.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

// One iteration calls the function that `make()` returns on `threads` threads
// at once. Each thread calls make() itself, so that they share nothing.
void OnThreads(benchmark::State& state, int threads,
               const std::function<std::function<void()>()>& make) {
  std::barrier gate(threads);
  bool more = true;
  const auto rounds = [&](const std::function<void()>& run) {
    for (gate.arrive_and_wait(); more; gate.arrive_and_wait()) {
      run();
      gate.arrive_and_wait();
    }
  };
  std::vector<std::thread> others;
  for (int t = 1; t < threads; ++t) {
    others.emplace_back([&] {
      omp_set_num_threads(1);
      const std::function<void()> run = make();
      run();
      rounds(run);
    });
  }
  const std::function<void()> run = make();
  run();
  for (auto _ : state) {
    gate.arrive_and_wait();
    run();
    gate.arrive_and_wait();
  }
  more = false;
  gate.arrive_and_wait();
  for (std::thread& other : others) other.join();
}

constexpr int64_t kSize = 1024;

void Gemm(benchmark::State& state,
          const std::function<std::function<void()>()>& make) {
  InitCompute();
  const int threads = static_cast<int>(state.range(0));
  OnThreads(state, threads, make);
  state.counters["gflops"] =
      benchmark::Counter(2e-9 * kSize * kSize * kSize * threads,
                         benchmark::Counter::kIsIterationInvariantRate);
}

using DataType = dnnl::memory::data_type;

void Onednn(benchmark::State& state, DataType a, DataType b, DataType c) {
  const auto make = [=]() -> std::function<void()> {
    const auto engine =
        std::make_shared<dnnl::engine>(dnnl::engine::kind::cpu, 0);
    const auto stream = std::make_shared<dnnl::stream>(*engine);
    const dnnl::memory::dims dims = {kSize, kSize};
    using Tag = dnnl::memory::format_tag;
    const dnnl::matmul::primitive_desc description(
        dnnl::matmul::desc({dims, a, Tag::ab}, {dims, b, Tag::any},
                           {dims, c, Tag::ab}),
        *engine);
    const dnnl::matmul matmul(description);
    const std::unordered_map<int, dnnl::memory> arguments = {
        {DNNL_ARG_SRC, {description.src_desc(), *engine}},
        {DNNL_ARG_WEIGHTS, {description.weights_desc(), *engine}},
        {DNNL_ARG_DST, {description.dst_desc(), *engine}}};
    for (const auto& [unused, memory] : arguments) {
      std::memset(memory.get_data_handle(), 0, memory.get_desc().get_size());
    }
    return [engine, stream, matmul, arguments] {
      matmul.execute(*stream, arguments);
      stream->wait();
    };
  };
  // oneDNN throws for a type that the processor lacks.
  try {
    make();
    Gemm(state, make);
  } catch (const dnnl::error& error) {
    state.SkipWithError(error.what());
  }
}

void OurInt8(benchmark::State& state) {
  Tensor panels = NewInt8Panels({kSize, kSize}, 1, kSize);
  RoundMatrix(RandomTensor({kSize, kSize}, 2), 0, /*transposed=*/false, panels);
  Gemm(state, [&]() -> std::function<void()> {
    const auto rows = std::make_shared<Int8Rows>(
        RandomTensor({kSize, kSize}, 1).f32(), kSize, kSize);
    const Tensor c(ElementType::kFloat32, {kSize, kSize});
    return [=, &panels]() mutable {
      MultiplyInt8(kSize, kSize, *rows, 0, panels.panels<int8_t>(),
                   Tensor(c).f32(), kSize);
    };
  });
}

template <typename T>
void Ours(benchmark::State& state) {
  if (!HasPanels()) return state.SkipWithError("no such instruction");
  const ElementType type = ElementTypeOf<T>::value;
  const Tensor panels =
      InPanels(Cast(RandomTensor({kSize, kSize}, 2), type), 1, kSize);
  Gemm(state, [&]() -> std::function<void()> {
    const Tensor a = Cast(RandomTensor({kSize, kSize}, 1), type);
    const Tensor c(ElementType::kFloat32, {kSize, kSize});
    return [=, &panels]() mutable {
      MultiplyPanels(kSize, kSize, kSize, std::as_const(a).data<T>(), kSize,
                     panels.panels<T>(), Tensor(c).f32(), kSize, false);
    };
  });
}

void OneAndTwo(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime();
}
BENCHMARK_CAPTURE(Onednn, float32, DataType::f32, DataType::f32, DataType::f32)
    ->Apply(OneAndTwo);
BENCHMARK_CAPTURE(Onednn, bfloat16, DataType::bf16, DataType::bf16,
                  DataType::f32)
    ->Apply(OneAndTwo);
BENCHMARK_CAPTURE(Onednn, int8, DataType::u8, DataType::s8, DataType::s32)
    ->Apply(OneAndTwo);
BENCHMARK(Ours<float>)->Name("Ours/float32")->Apply(OneAndTwo);
BENCHMARK(Ours<BFloat16>)->Name("Ours/bfloat16")->Apply(OneAndTwo);
BENCHMARK(OurInt8)->Name("Ours/int8")->Apply(OneAndTwo);

// Arrays larger than any cache.
constexpr int64_t kBytes = int64_t{256} << 20;

void Bandwidth(benchmark::State& state, double bytes,
               const std::function<std::function<void()>()>& make) {
  const int threads = static_cast<int>(state.range(0));
  OnThreads(state, threads, make);
  state.counters["GB/s"] = benchmark::Counter(
      1e-9 * bytes * threads, benchmark::Counter::kIsIterationInvariantRate);
}

void ReadMemory(benchmark::State& state) {
  Bandwidth(state, kBytes, [] {
    return [from = std::vector<uint64_t>(kBytes / 8, 1)] {
      uint64_t sum = 0;
#pragma omp simd reduction(+ : sum)
      for (size_t i = 0; i < from.size(); ++i) sum += from[i];
      benchmark::DoNotOptimize(sum);
    };
  });
}
BENCHMARK(ReadMemory)->Apply(OneAndTwo);

void CopyMemory(benchmark::State& state) {
  Bandwidth(state, kBytes, [] {
    return [from = std::vector<char>(kBytes, 1),
            to = std::vector<char>(kBytes)]() mutable {
      std::memcpy(to.data(), from.data(), kBytes);
      benchmark::DoNotOptimize(to.data());
    };
  });
}
BENCHMARK(CopyMemory)->Apply(OneAndTwo);

void Transfer(int fd, std::vector<char>& bytes, bool send) {
  for (size_t done = 0; done < bytes.size();) {
    char* const at = bytes.data() + done;
    const ssize_t n = send ? ::send(fd, at, bytes.size() - done, MSG_NOSIGNAL)
                           : ::recv(fd, at, bytes.size() - done, 0);
    if (n <= 0) return;  // the other end has closed
    done += n;
  }
}

// One iteration sends `bytes` over 127.0.0.1 and waits for as many back.
void Loopback(benchmark::State& state) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  CHECK(::bind(listener, name, size) == 0 && ::listen(listener, 1) == 0 &&
        ::getsockname(listener, name, &size) == 0);
  const int ours = ::socket(AF_INET, SOCK_STREAM, 0);
  CHECK(::connect(ours, name, size) == 0);
  const int theirs = ::accept(listener, nullptr, nullptr);
  CHECK(theirs >= 0);
  const int on = 1;
  for (const int fd : {ours, theirs}) {
    CHECK(::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
  }
  const int64_t iterations = state.max_iterations;
  std::vector<char> bytes(state.range(0), 1);
  std::thread echo([&, theirs_bytes = bytes]() mutable {
    for (int64_t i = 0; i < iterations; ++i) {
      Transfer(theirs, theirs_bytes, false);
      Transfer(theirs, theirs_bytes, true);
    }
  });
  for (auto _ : state) {
    Transfer(ours, bytes, true);
    Transfer(ours, bytes, false);
  }
  echo.join();
  for (const int fd : {ours, theirs, listener}) ::close(fd);
  state.counters["GB/s"] =
      benchmark::Counter(2e-9 * static_cast<double>(state.range(0)),
                         benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(Loopback)
    ->ArgName("bytes")
    ->Arg(4 << 10)
    ->Arg(1 << 20)
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace gshard

BENCHMARK_MAIN();
