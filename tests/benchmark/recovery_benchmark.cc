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
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/child_process.h"
#include "proto/gshard/v1/coordinator.grpc.pb.h"
#include "services/base/check.h"
#include "services/config/flags.h"
#include "services/config/training_job_proto.h"
#include "services/rpc/client/channel.h"
#include "tests/integration/names_job.h"
#include "tests/integration/temporary_directory.h"

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
  System(int64_t lease_ms, bool buddies) {
    const std::string coordinator = Socket("coordinator");
    Start("coordinator", "gshard_coordinator",
          {"--listen=" + coordinator, absl::StrCat("--lease_ms=", lease_ms)});
    StartMember("router-0", "gshard_router");
    for (int w = 0; w < kWorkers; ++w) {
      StartMember(absl::StrCat("worker-", w), "gshard_expert_worker");
    }
    const auto channel = CreateChannel(coordinator);
    CHECK(channel.ok());
    stub_ = v1::CoordinatorService::NewStub(*channel);
    TrainingJob job = NamesJob(directory_.path() + "/checkpoints");
    job.steps = 1'000'000;
    job.min_workers = kWorkers;
    job.checkpoint.every_steps = kCheckpointEvery;
    job.recovery.buddies = buddies;
    v1::SubmitJobRequest request;
    *request.mutable_job() = TrainingJobToProto(job);
    request.mutable_job()->mutable_data()->set_train_path(
        std::filesystem::absolute(job.data.train_path).string());
    v1::SubmitJobResponse response;
    while (true) {
      grpc::ClientContext context;
      context.set_wait_for_ready(true);
      if (stub_->SubmitJob(&context, request, &response).ok()) break;
    }
  }

  v1::JobProgress Progress() {
    grpc::ClientContext context;
    v1::DescribeResponse response;
    CHECK(stub_->Describe(&context, {}, &response).ok());
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
    CHECK(::kill(processes_.at("worker-1")->pid(), signal) == 0);
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
  std::string Socket(const std::string& name) const {
    return absl::StrCat("unix:", directory_.path(), "/", name);
  }
  void StartMember(const std::string& name, const std::string& program) {
    Start(name, program,
          {"--listen=" + Socket(name), "--name=" + name,
           "--coordinator=" + Socket("coordinator")});
  }
  void Start(const std::string& name, const std::string& program,
             std::vector<std::string> flags) {
    flags.insert(flags.begin(), absl::StrCat(GSHARD_PROGRAMS, "/", program));
    auto process = ChildProcess::Start(
        name, flags, absl::StrCat(directory_.path(), "/", name, ".log"));
    CHECK(process.ok());
    processes_[name] = *std::move(process);
  }

  const TemporaryDirectory directory_;
  std::map<std::string, std::unique_ptr<ChildProcess>> processes_;
  std::unique_ptr<v1::CoordinatorService::Stub> stub_;
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
