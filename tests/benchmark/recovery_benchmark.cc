// The downtime of a training job that loses an expert worker, with and without
// buddies: from the fault to the first step beyond those committed before it.
// All members run in processes of their own.
//
//   build/release/benchmark/recovery_benchmark --lease_ms=5000 --runs=3
//
// killed: SIGKILL, which closes the worker's connections. stopped: SIGSTOP,
// which goes unnoticed until the lease expires. No worker replaces the lost
// one, so the job waits for recovery.replacement_wait_ms (the default).

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/config/flags.h"
#include "tests/benchmark/process_system.h"
#include "tests/integration/names_job.h"

namespace gshard {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWorkers = 3;
constexpr int64_t kCheckpointEvery = 100;
constexpr int64_t kFaultAt = 150;

struct Outcome {
  double seconds = 0.0;
  int64_t steps_redone = 0;
};

// A coordinator, a router and workers, running a job.
class System {
 public:
  System(int64_t lease_ms, bool buddies)
      : system_(1, kWorkers, {absl::StrCat("--lease_ms=", lease_ms)}, {}) {
    TrainingJob job = NamesJob(system_.directory() + "/checkpoints");
    job.data.train_path =
        std::filesystem::absolute(job.data.train_path).string();
    job.steps = 1'000'000;
    job.min_workers = kWorkers;
    job.checkpoint.every_steps = kCheckpointEvery;
    job.recovery.buddies = buddies;
    system_.Submit(job);
  }

  v1::JobProgress Progress() {
    grpc::ClientContext context;
    v1::DescribeResponse response;
    CHECK(system_.coordinator().Describe(&context, {}, &response).ok());
    const v1::JobProgress progress = response.jobs(0);
    if (progress.state() == v1::JOB_STATE_FAILED) {
      std::fprintf(stderr, "the job failed: %s\n",
                   progress.status().message().c_str());
      std::exit(1);
    }
    return progress;
  }

  // Sends `signal` to the second of the three workers and times the recovery.
  Outcome Lose(int signal) {
    while (Progress().step() < kFaultAt) Pause();
    const int64_t before = Progress().step();
    const auto begin = Clock::now();
    CHECK(::kill(system_.pid("worker-1"), signal) == 0);
    Outcome outcome;
    int64_t furthest = before;
    while (true) {
      const v1::JobProgress progress = Progress();
      outcome.steps_redone =
          std::max(outcome.steps_redone, furthest - progress.step());
      if (progress.attempt() > 1 && progress.step() > furthest) break;
      furthest = std::max(furthest, progress.step());
      Pause();
    }
    outcome.seconds =
        std::chrono::duration<double>(Clock::now() - begin).count();
    return outcome;
  }

 private:
  static void Pause() {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  ProcessSystem system_;
};

void Run(int64_t lease_ms, int64_t runs) {
  std::printf(
      "lease %lld ms, checkpoints every %lld steps, the fault near "
      "step %lld, %lld runs\n\n",
      static_cast<long long>(lease_ms),
      static_cast<long long>(kCheckpointEvery),
      static_cast<long long>(kFaultAt), static_cast<long long>(runs));
  std::printf("%-8s  %-7s  %9s  %9s  %14s  %12s\n", "worker", "buddies",
              "median s", "worst s", "worst / lease", "steps redone");
  for (const auto& [name, signal] :
       {std::pair("killed", SIGKILL), std::pair("stopped", SIGSTOP)}) {
    for (const bool buddies : {false, true}) {
      std::vector<double> seconds;
      int64_t redone = 0;
      for (int64_t run = 0; run < runs; ++run) {
        System system(lease_ms, buddies);
        const Outcome outcome = system.Lose(signal);
        seconds.push_back(outcome.seconds);
        redone = std::max(redone, outcome.steps_redone);
      }
      std::sort(seconds.begin(), seconds.end());
      std::printf("%-8s  %-7s  %9.2f  %9.2f  %14.2f  %12lld\n", name,
                  buddies ? "yes" : "no", seconds[seconds.size() / 2],
                  seconds.back(), seconds.back() * 1e3 / lease_ms,
                  static_cast<long long>(redone));
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace gshard

int main(int argc, char** argv) {
  int64_t lease_ms = 5000, runs = 3;
  gshard::Flags flags("recovery_benchmark", "Times the loss of a worker.");
  flags.Integer("lease_ms", &lease_ms, 100, 3'600'000, "the lease");
  flags.Integer("runs", &runs, 1, 1000, "runs of each kind");
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const auto parsed = flags.Parse(arguments);
  if (!parsed.ok()) {
    std::fprintf(stderr, "%s\n", parsed.status().ToString().c_str());
    return 64;
  }
  gshard::Run(lease_ms, runs);
  return 0;
}
