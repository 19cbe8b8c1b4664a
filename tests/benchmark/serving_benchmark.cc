// Throughput of a router's front end over a unix socket, and latency at 70% of
// it: calls of one sentence, of mixed lengths and beams, that arrive at random
// times whether or not earlier ones are done.
//
//   serving_benchmark [SECONDS [RATE]]
//
// RATE replaces the 70% of the capacity measured just before. The model (2 + 2
// layers, M 128, 16 experts, V 8000, random weights) runs in this process,
// experts included, on one thread; each translation ends at a random length
// limit.

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>

#include "router/edge/translation_service.h"
#include "services/base/check.h"
#include "services/base/random.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/server/server.h"
#include "tests/router/local_model.h"
#include "tests/testing/tiny_model.h"

namespace gshard {
namespace {

using Clock = std::chrono::steady_clock;

ModelConfig BenchmarkModel() {
  ModelConfig model = TinyConfig();
  model.model_width = 128;
  model.ffn_width = model.expert_width = 512;
  model.heads = 4;
  model.head_width = 32;
  model.experts = 16;
  model.source_vocabulary_size = model.target_vocabulary_size = 8000;
  model.shared_vocabulary = true;
  model.max_positions = 256;
  return model;
}

// The i-th sentence: 4 to 40 tokens, a limit of 1 to 2 times as many in
// translation, greedy search for one in three and a beam of 4 for the others.
v1::TranslateRequest RequestOf(uint64_t i) {
  v1::TranslateRequest request;
  const uint64_t length = 4 + RandomBelow(1, i, 37);
  std::string text;
  for (uint64_t t = 0; t < length; ++t) {
    text += std::to_string(4 + RandomBelow(FoldIn(2, i), t, 7000)) + " ";
  }
  request.add_sentences()->set_text(text);
  v1::TranslateOptions& options = *request.mutable_options();
  options.set_beam_size(RandomBelow(3, i, 3) == 0 ? 1 : 4);
  options.set_max_length(length + RandomBelow(4, i, length + 1));
  return request;
}

// Calls in flight, and the durations of finished ones.
class Load {
 public:
  explicit Load(const std::string& address)
      : channel_(*CreateChannel(address)),
        stub_(v1::TranslationService::NewStub(channel_)) {}

  void Send() {
    struct Call {
      grpc::ClientContext context;
      v1::TranslateRequest request;
      v1::TranslateResponse response;
    };
    auto call = std::make_shared<Call>();
    call->request = RequestOf(next_++);
    SetDeadline(call->context, std::chrono::seconds(60));
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ++under_way_;
    }
    const Clock::time_point start = Clock::now();
    stub_->async()->Translate(
        &call->context, &call->request, &call->response,
        [this, call, start](const grpc::Status& status) {
          std::lock_guard<std::mutex> lock(mutex_);
          --under_way_;
          failed_ += !status.ok();
          seconds_.push_back(
              std::chrono::duration<double>(Clock::now() - start).count());
          changed_.notify_all();
        });
  }

  void WaitUntilAtMost(size_t calls) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return under_way_ <= calls; });
  }

  // Sorted durations of the calls that ended since the previous TakeSeconds().
  std::vector<double> TakeSeconds() {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<double> seconds = std::exchange(seconds_, {});
    std::sort(seconds.begin(), seconds.end());
    return seconds;
  }

  int64_t failed() {
    std::lock_guard<std::mutex> lock(mutex_);
    return failed_;
  }

 private:
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::TranslationService::Stub> stub_;
  uint64_t next_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t under_way_ = 0;
  int64_t failed_ = 0;
  std::vector<double> seconds_;
};

// CPU time of all threads.
double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec +
                                    usage.ru_stime.tv_usec);
}

// Keeps enough calls in flight to fill any batch.
double MeasureCapacity(Load& load, double seconds) {
  constexpr size_t kCalls = 128;
  const auto run = [&](double length) {
    const Clock::time_point end =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(
                           std::chrono::duration<double>(length));
    while (Clock::now() < end) {
      load.WaitUntilAtMost(kCalls - 1);
      load.Send();
    }
  };
  run(seconds / 4);
  load.TakeSeconds();
  const double cpu = CpuSeconds();
  run(seconds);
  const auto ended = static_cast<double>(load.TakeSeconds().size());
  std::printf("%8.1f sentences/s at most, %.1f a second of CPU\n",
              ended / seconds, ended / (CpuSeconds() - cpu));
  load.WaitUntilAtMost(0);
  load.TakeSeconds();
  return ended / seconds;
}

void MeasureLatency(Load& load, double rate, double seconds) {
  Clock::time_point next = Clock::now();
  const Clock::time_point start = next;
  for (uint64_t i = 0; next - start < std::chrono::duration<double>(seconds);
       ++i) {
    std::this_thread::sleep_until(next);
    load.Send();
    const double gap = -std::log(1.0 - RandomUniform(5, i)) / rate;
    next += std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(gap));
  }
  load.WaitUntilAtMost(0);
  const std::vector<double> took = load.TakeSeconds();
  const auto quantile = [&](double q) {
    return 1000 * took[static_cast<size_t>(q * (took.size() - 1))];
  };
  std::printf("%8.1f sentences/s: p50 %6.0f ms  p90 %6.0f ms  p99 %6.0f ms\n",
              static_cast<double>(took.size()) / seconds, quantile(0.5),
              quantile(0.9), quantile(0.99));
}

int Main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 20.0;
  const ModelConfig config = BenchmarkModel();
  ModelTable models;
  CHECK(models
            .Add(std::make_shared<LocalModel>(
                "benchmark@1", config, TinyParameters(config, 1),
                TargetTokens{.bos = 2, .eos = 1, .never = {0, 2}}))
            .ok());
  Batcher batcher({});
  TranslationService service(&models, &batcher);
  const std::string address =
      "unix:/tmp/serving_benchmark." + std::to_string(getpid());
  ServerShell server({.address = address});
  server.AddService(&service, v1::TranslationService::service_full_name());
  CHECK(server.Start().ok());
  {
    Load load(address);
    const double capacity = MeasureCapacity(load, seconds);
    MeasureLatency(load, argc > 2 ? std::atof(argv[2]) : 0.7 * capacity,
                   seconds);
    if (load.failed() > 0) {
      std::printf("%ld calls failed\n", static_cast<long>(load.failed()));
    }
  }
  server.Drain(std::chrono::seconds(5));
  return 0;
}

}  // namespace
}  // namespace gshard

int main(int argc, char** argv) { return gshard::Main(argc, argv); }
