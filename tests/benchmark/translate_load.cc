// Sends translations to routers at random times, whether or not earlier ones
// are done, and reports their outcomes.
//
//   translate_load --routers=127.0.0.1:7001,127.0.0.1:7002 --model=titles
//     --seconds=30 --rate=50 --log=calls.txt
//
// One channel covers all routers and sends calls round-robin to those whose
// health check reports serving. Nothing is retried. With --rate=0, --calls
// calls are always in flight, which measures the capacity.
//
// Prints one line, "requests N failed N degraded N rate R p50_ms T p99_ms T";
// --log adds a line per call: its end in milliseconds since 1970, its duration
// in milliseconds, its status code, and 1 if it was degraded.
//
// SIGTERM stops new calls and waits for those in flight.

#include <grpcpp/create_channel.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/strings/str_join.h"
#include "proto/gshard/v1/translation.grpc.pb.h"
#include "services/base/random.h"
#include "services/config/flags.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/process/signal_watcher.h"

namespace gshard {
namespace {

using Clock = std::chrono::steady_clock;

struct LoadFlags {
  std::vector<std::string> routers;
  std::string model;
  std::vector<std::string> texts = {"Deutschland", "Vereinigte Staaten",
                                    "Niederländisch", "Amerikanisch-Samoa"};
  std::string language = "de";
  double seconds = 10.0;
  double rate = 0.0;
  int64_t calls = 16;
  int64_t beam = 2;
  int64_t deadline_ms = 10'000;
  int64_t seed = 1;
  bool require_full = false;
  std::string token_file;
  std::string log;
};

Flags DeclareFlags(LoadFlags* values) {
  Flags flags("translate_load", "Loads routers with translations.");
  flags.List("routers", &values->routers, "HOST:PORT",
             "numeric IPv4 addresses, or one of another kind");
  flags.Text("model", &values->model, "NAME", "the only one if empty");
  flags.List("texts", &values->texts, "TEXT", "sentences, drawn at random");
  flags.Text("language", &values->language, "CODE", "of the sentences");
  flags.Real("seconds", &values->seconds, Interval::Closed(0.0, 1e6),
             "how long calls are begun");
  flags.Real("rate", &values->rate, Interval::Closed(0.0, 1e6),
             "calls a second; 0 keeps --calls under way");
  flags.Integer("calls", &values->calls, 1, 1 << 16,
                "calls under way with --rate=0");
  flags.Integer("beam", &values->beam, 1, 32, "hypotheses of the search");
  flags.Integer("deadline_ms", &values->deadline_ms, 1, 3'600'000,
                "time that a call has");
  flags.Integer("seed", &values->seed, 0, 1 << 30, "of times and sentences");
  flags.Bool("require_full", &values->require_full,
             "ask for full translations only");
  flags.Text("token_file", &values->token_file, "FILE",
             "the token that calls carry; left out: none");
  flags.Text("log", &values->log, "FILE", "where each call is listed");
  flags.Require("routers");
  flags.Example("translate_load --routers=127.0.0.1:7001 --rate=50");
  return flags;
}

std::shared_ptr<grpc::Channel> Connect(
    const std::vector<std::string>& routers) {
  KeepGrpcRunning();
  grpc::ChannelArguments arguments;
  arguments.SetServiceConfigJSON(
      R"({"loadBalancingConfig":[{"round_robin":{}}],
          "healthCheckConfig":{
            "serviceName":"gshard.v1.TranslationService"}})");
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  const bool by_number =
      !routers.empty() && routers[0].find("unix:") == std::string::npos;
  return grpc::CreateCustomChannel(
      (by_number ? "ipv4:" : "") + absl::StrJoin(routers, ","),
      grpc::InsecureChannelCredentials(), arguments);
}

std::atomic<bool> stopping = false;

class Load {
 public:
  explicit Load(const LoadFlags& flags)
      : flags_(flags),
        stub_(v1::TranslationService::NewStub(Connect(flags.routers))) {
    if (!flags.log.empty()) log_.open(flags.log);
    std::ifstream(flags.token_file) >> token_;
  }

  void Run() {
    const Clock::time_point begin = Clock::now();
    const auto end = begin + std::chrono::duration_cast<Clock::duration>(
                                 std::chrono::duration<double>(flags_.seconds));
    Clock::time_point next = begin;
    for (uint64_t i = 0; next < end && !stopping; ++i) {
      if (flags_.rate > 0.0) {
        std::this_thread::sleep_until(next);
        const double gap =
            -std::log(1.0 - RandomUniform(flags_.seed, i)) / flags_.rate;
        next += std::chrono::duration_cast<Clock::duration>(
            std::chrono::duration<double>(gap));
      } else {
        Wait(static_cast<size_t>(flags_.calls) - 1);
        next = Clock::now();
      }
      Send(i);
    }
    Wait(0);
    seconds_ = std::chrono::duration<double>(Clock::now() - begin).count();
  }

  void Print() {
    std::sort(took_.begin(), took_.end());
    const auto quantile = [&](double q) {
      return took_.empty() ? 0.0
                           : took_[static_cast<size_t>(q * (took_.size() - 1))];
    };
    std::printf(
        "requests %zu failed %ld degraded %ld rate %.1f p50_ms %.1f "
        "p99_ms %.1f\n",
        took_.size(), failed_, degraded_,
        static_cast<double>(took_.size()) / seconds_, quantile(0.5),
        quantile(0.99));
  }

 private:
  struct Call {
    grpc::ClientContext context;
    v1::TranslateRequest request;
    v1::TranslateResponse response;
  };

  void Send(uint64_t i) {
    auto call = std::make_shared<Call>();
    v1::Sentence* const sentence = call->request.add_sentences();
    sentence->set_text(flags_.texts[RandomBelow(FoldIn(flags_.seed, 1), i,
                                                flags_.texts.size())]);
    sentence->set_source_language(flags_.language);
    call->request.set_model(flags_.model);
    call->request.mutable_options()->set_beam_size(
        static_cast<int32_t>(flags_.beam));
    call->request.set_require_full(flags_.require_full);
    // Waits until the first router serves.
    SetDeadline(call->context, std::chrono::milliseconds(flags_.deadline_ms),
                /*wait_for_ready=*/true);
    if (!token_.empty()) {
      call->context.AddMetadata("authorization", "Bearer " + token_);
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ++under_way_;
    }
    const Clock::time_point start = Clock::now();
    stub_->async()->Translate(
        &call->context, &call->request, &call->response,
        [this, call, start](const grpc::Status& status) mutable {
          const double ms =
              std::chrono::duration<double, std::milli>(Clock::now() - start)
                  .count();
          const bool degraded = status.ok() && call->response.degraded();
          // The call holds the channel, whose destructor waits for this gRPC
          // thread, so this thread must not drop the last reference.
          call = nullptr;
          std::lock_guard<std::mutex> lock(mutex_);
          took_.push_back(ms);
          failed_ += !status.ok();
          degraded_ += degraded;
          if (!status.ok() && failed_ <= 20) {
            std::cerr << "failed: " << status.error_code() << " "
                      << status.error_message() << std::endl;
          }
          if (log_.is_open()) {
            log_ << std::chrono::duration_cast<std::chrono::milliseconds>(
                        std::chrono::system_clock::now().time_since_epoch())
                        .count()
                 << " " << ms << " " << status.error_code() << " " << degraded
                 << std::endl;
          }
          --under_way_;
          changed_.notify_all();
        });
  }

  void Wait(size_t most) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return under_way_ <= most; });
  }

  const LoadFlags flags_;
  const std::unique_ptr<v1::TranslationService::Stub> stub_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t under_way_ = 0;
  std::vector<double> took_;  // milliseconds
  long failed_ = 0;
  long degraded_ = 0;
  double seconds_ = 0.0;
  std::ofstream log_;
  std::string token_;
};

int Main(int argc, char** argv) {
  LoadFlags values;
  Flags flags = DeclareFlags(&values);
  if (const auto exit_code =
          flags.ParseOrExit(std::vector<std::string>(argv + 1, argv + argc))) {
    return *exit_code;
  }
  SignalWatcher signals([](int) { stopping = true; });
  Load load(values);
  load.Run();
  load.Print();
  return 0;
}

}  // namespace
}  // namespace gshard

int main(int argc, char** argv) { return gshard::Main(argc, argv); }
