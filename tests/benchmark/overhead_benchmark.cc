// The overhead of fault tolerance in a job: leases, checkpoints written while
// steps go on, and steps as transactions.
//
//   build/release/benchmark/overhead_benchmark --rounds=3 --every=10
//
// One system, in this process over unix sockets, runs the same job in turn:
//   off    with no checkpoint but the last and a lease of an hour,
//   on     with a checkpoint every few steps and a lease of a second,
//   sync   as on, but steps wait while a checkpoint is written.
// The best round of each variant counts, because other programs only add time;
// CPU time of the whole process, which they do not affect, is reported as well.
// Every step is prepared and committed, so the cost of those two phases is
// measured separately, in a model with next to no arithmetic, where it is the
// cost of their messages.

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "expert_worker/expert_worker_process.h"
#include "proto/gshard/v1/coordinator.grpc.pb.h"
#include "router/router_process.h"
#include "services/base/check.h"
#include "services/config/flags.h"
#include "services/config/training_job_proto.h"
#include "services/coordinator/coordinator_process.h"
#include "services/rpc/client/channel.h"
#include "tests/integration/names_job.h"
#include "tests/integration/temporary_directory.h"

namespace gshard {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWorkers = 2;
constexpr int64_t kWarmUp = 2;  // steps

struct Variant {
  std::string name;
  int64_t every_steps = 0;
  bool asynchronous = true;
  absl::Duration lease = absl::Hours(1);
};

// The cost of one step.
struct Cost {
  double wall = 1e30;  // seconds
  double cpu = 1e30;
  double tokens = 0.0;
  std::map<std::string, double> phases;  // seconds
};

double CpuSeconds() {
  rusage usage;
  CHECK(::getrusage(RUSAGE_SELF, &usage) == 0);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) +
           1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// The value of the metrics line that starts with `series`.
double Value(const std::string& metrics, const std::string& series) {
  const size_t at = metrics.find("\n" + series);
  if (at == metrics.npos) return 0.0;
  const size_t begin = metrics.find(' ', at + series.size()) + 1;
  double value = 0.0;
  CHECK(absl::SimpleAtod(
      metrics.substr(begin, metrics.find('\n', begin) - begin), &value));
  return value;
}

TrainingJob Job(int64_t width, int64_t steps) {
  TrainingJob job = NamesJob("");
  job.model.model_width = width;
  job.model.ffn_width = job.model.expert_width = 4 * width;
  job.model.heads = 4;
  job.model.head_width = std::max<int64_t>(width / 4, 1);
  job.model.dropout = {.input = 0, .residual = 0, .attention = 0};
  job.optimizer = AdafactorConfig();
  job.microbatches_per_step = 2;
  job.tokens_per_microbatch = width > 64 ? 2048 : 64;
  job.min_workers = kWorkers;
  job.steps = steps;
  return job;
}

Cost Train(TrainingJob job, const Variant& variant) {
  const TemporaryDirectory directory;
  const auto socket = [&](const std::string& name) {
    return absl::StrCat("unix:", directory.path(), "/", name);
  };
  CoordinatorProcessOptions options;
  options.process.listen = socket("coordinator");
  options.process.lease_ms = absl::ToInt64Milliseconds(variant.lease);
  CoordinatorProcess coordinator(options);
  CHECK(coordinator.Start().ok());
  const auto member = [&](const std::string& name) {
    ProcessOptions process;
    process.listen = socket(name);
    process.name = name;
    process.coordinator = coordinator.address();
    return process;
  };
  std::vector<std::unique_ptr<ExpertWorkerProcess>> workers;
  for (int w = 0; w < kWorkers; ++w) {
    ExpertWorkerOptions worker;
    worker.process = member(absl::StrCat("worker-", w));
    workers.push_back(std::make_unique<ExpertWorkerProcess>(worker));
    CHECK(workers.back()->Start().ok());
  }
  RouterOptions router_options;
  router_options.process = member("router");
  RouterProcess router(router_options);
  CHECK(router.Start().ok());

  job.checkpoint.directory = directory.path() + "/checkpoints";
  job.checkpoint.every_steps = variant.every_steps;
  job.checkpoint.asynchronous = variant.asynchronous;
  job.data.train_path = std::filesystem::absolute(job.data.train_path).string();
  const auto channel = CreateChannel(coordinator.address());
  CHECK(channel.ok());
  const auto stub = v1::CoordinatorService::NewStub(*channel);
  v1::SubmitJobRequest submit;
  *submit.mutable_job() = TrainingJobToProto(job);
  v1::SubmitJobResponse submitted;
  {
    grpc::ClientContext context;
    CHECK(stub->SubmitJob(&context, submit, &submitted).ok());
  }
  v1::WatchJobRequest watch;
  watch.set_job(submitted.job());
  grpc::ClientContext context;
  const auto lines = stub->WatchJob(&context, watch);
  v1::JobProgress line;
  Clock::time_point begin;
  double cpu = 0.0;
  std::string before;
  Cost cost;
  while (lines->Read(&line)) {
    if (line.step() == kWarmUp && before.empty()) {
      begin = Clock::now();
      cpu = CpuSeconds();
      before = coordinator.Metrics();
    } else if (line.step() == job.steps && cost.tokens == 0.0) {
      const double steps = static_cast<double>(job.steps - kWarmUp);
      const std::string after = coordinator.Metrics();
      cost.wall =
          std::chrono::duration<double>(Clock::now() - begin).count() / steps;
      cost.cpu = (CpuSeconds() - cpu) / steps;
      const auto grown = [&](const std::string& series) {
        return (Value(after, series) - Value(before, series)) / steps;
      };
      cost.tokens = grown("gshard_train_tokens_total");
      for (const char* phase :
           {"microbatches", "prepare", "commit", "checkpoint"}) {
        cost.phases[phase] = grown(absl::StrCat(
            "gshard_train_phase_seconds_total{phase=\"", phase, "\"}"));
      }
    }
  }
  if (line.state() != v1::JOB_STATE_SUCCEEDED) {
    std::fprintf(stderr, "the job failed: %s\n",
                 line.status().message().c_str());
    std::exit(1);
  }
  const std::chrono::seconds grace(5);
  router.Drain(grace);
  for (const auto& worker : workers) worker->Drain(grace);
  coordinator.Drain(grace);
  return cost;
}

void Keep(const Cost& cost, Cost* best) {
  best->tokens = cost.tokens;
  best->cpu = std::min(best->cpu, cost.cpu);
  if (cost.wall >= best->wall) return;
  best->wall = cost.wall;
  best->phases = cost.phases;
}

void Run(int64_t rounds, int64_t every, int64_t steps, int64_t width) {
  const std::vector<Variant> variants = {
      {.name = "off"},
      {.name = "on", .every_steps = every, .lease = absl::Seconds(1)},
      {.name = "sync",
       .every_steps = every,
       .asynchronous = false,
       .lease = absl::Seconds(1)}};
  std::map<std::string, Cost> best;
  for (int64_t round = 0; round < rounds; ++round) {
    for (const Variant& variant : variants) {
      Keep(Train(Job(width, steps), variant), &best[variant.name]);
    }
  }
  Cost messages;
  for (int64_t round = 0; round < rounds; ++round) {
    Keep(Train(Job(/*width=*/4, /*steps=*/200), variants[0]), &messages);
  }
  std::printf(
      "%lld steps, a checkpoint every %lld, the best of %lld rounds\n\n",
      static_cast<long long>(steps), static_cast<long long>(every),
      static_cast<long long>(rounds));
  std::printf("%-5s  %10s  %8s  %10s  %8s  %10s\n", "", "ms / step", "cost",
              "cpu ms", "cost", "tokens / s");
  const Cost& off = best["off"];
  for (const Variant& variant : variants) {
    const Cost& cost = best[variant.name];
    std::printf("%-5s  %10.2f  %7.2f%%  %10.2f  %7.2f%%  %10.0f\n",
                variant.name.c_str(), 1e3 * cost.wall,
                100 * (cost.wall / off.wall - 1), 1e3 * cost.cpu,
                100 * (cost.cpu / off.cpu - 1), cost.tokens / cost.wall);
  }
  std::printf("\n%-22s  %10s  %8s\n", "of a step with it on", "ms", "share");
  const Cost& on = best["on"];
  const auto print = [&](const char* name, double seconds) {
    std::printf("%-22s  %10.2f  %7.2f%%\n", name, 1e3 * seconds,
                100 * seconds / on.wall);
  };
  for (const auto& [phase, seconds] : on.phases) print(phase.c_str(), seconds);
  print("messages of the two",
        messages.phases["prepare"] + messages.phases["commit"]);
}

}  // namespace
}  // namespace gshard

int main(int argc, char** argv) {
  int64_t rounds = 3, every = 10, steps = 42, width = 128;
  gshard::Flags flags("overhead_benchmark", "Prices that jobs survive faults.");
  flags.Integer("rounds", &rounds, 1, 1000, "jobs of each kind");
  flags.Integer("every", &every, 1, 1000000, "steps between checkpoints");
  flags.Integer("steps", &steps, 3, 1000000, "steps of a job");
  flags.Integer("width", &width, 4, 4096, "the model's width");
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const auto parsed = flags.Parse(arguments);
  if (!parsed.ok()) {
    std::fprintf(stderr, "%s\n", parsed.status().ToString().c_str());
    return 64;
  }
  gshard::Run(rounds, every, steps, width);
  return 0;
}
