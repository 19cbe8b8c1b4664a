// The overhead of running a job as processes: the same steps of the job of
// demo.sh, run by a coordinator, two routers and two expert workers in
// processes of their own, and by LocalTrainer in this process, in target tokens
// per second of CPU time. The text is made-up words; both runs produce the same
// bits.
//
// Run from the project's root: build/release/benchmark/job_benchmark

#include <benchmark/benchmark.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/child_process.h"
#include "proto/gshard/v1/coordinator.grpc.pb.h"
#include "services/base/check.h"
#include "services/base/parallel.h"
#include "services/base/random.h"
#include "services/base/status_macros.h"
#include "services/config/training_job_proto.h"
#include "services/data/batch_order.h"
#include "services/ops/matmul.h"
#include "services/rpc/client/channel.h"
#include "services/tokenizer/tokenizer.h"
#include "tests/integration/temporary_directory.h"
#include "tests/reference/dataset.h"
#include "tests/reference/local_trainer.h"

namespace gshard {
namespace {

constexpr int64_t kWarmUp = 5, kSteps = 35;
constexpr int kRouters = 2, kWorkers = 2;

// Words of two to four syllables.
std::string Words(uint64_t key) {
  static constexpr const char* kSyllables[] = {
      "ba", "ke", "di", "lo", "mu", "ran", "sel", "tin", "vor", "zu",
      "pa", "ge", "fi", "no", "tu", "sta", "men", "bel", "ker", "us"};
  std::string line;
  const uint64_t words = 4 + RandomBelow(key, 0, 8);
  for (uint64_t w = 0; w < words; ++w) {
    // Log-uniform over 8000 words: half of all draws are among the first 90.
    const auto word = static_cast<uint64_t>(
        std::pow(8000.0, RandomUniform(FoldIn(key, 1), w)));
    for (uint64_t s = 0; s < 2 + word % 3; ++s) {
      line += kSyllables[RandomBelow(word, s, std::size(kSyllables))];
    }
    line += w + 1 < words ? " " : "";
  }
  return line;
}

TrainingJob DemoJob(const std::string& directory) {
  auto job = LoadTrainingJob("deploy/config/demo_job.textproto");
  CHECK(job.ok());
  job->data.train_path = directory + "/train.tsv";
  job->data.dev_path.clear();
  job->validation = {};
  job->serve_as.clear();
  job->summary_directory.clear();
  job->checkpoint.directory = directory + "/checkpoints";
  job->progress_every_steps = 1;
  job->time_limit_seconds = 0;
  job->schedule.cooldown_steps = 0;
  job->steps = kSteps;
  job->min_routers = kRouters;
  job->min_workers = kWorkers;
  std::ofstream text(job->data.train_path);
  for (uint64_t i = 0; i < 6000; ++i) {
    text << "de\t" << Words(FoldIn(1, i)) << "\t" << Words(FoldIn(2, i))
         << "\n";
  }
  return *std::move(job);
}

// CPU time of a process so far, in seconds.
double CpuSeconds(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  // Fields 14 and 15, counted after the process name, which may hold anything.
  const std::vector<std::string> fields =
      absl::StrSplit(text.substr(text.rfind(')') + 2), ' ');
  return (std::stod(fields[11]) + std::stod(fields[12])) /
         static_cast<double>(::sysconf(_SC_CLK_TCK));
}

// CPU time of all processes for the steps after the warm-up.
double CpuSecondsOfProcesses(const TrainingJob& job,
                             const std::string& directory) {
  std::vector<std::unique_ptr<ChildProcess>> processes;
  const auto socket = [&](const std::string& name) {
    return absl::StrCat("unix:", directory, "/", name);
  };
  const auto start = [&](const std::string& name, const std::string& program,
                         bool member) {
    std::vector<std::string> command = {
        absl::StrCat(GSHARD_PROGRAMS, "/", program), "--listen=" + socket(name),
        // As the demo has them on two cores: `gshard up` shares these out.
        "--threads=1"};
    if (member) {
      command.push_back("--coordinator=" + socket("coordinator"));
      command.push_back("--name=" + name);
    }
    auto process = ChildProcess::Start(
        name, command, absl::StrCat(directory, "/", name, ".log"));
    CHECK(process.ok());
    processes.push_back(*std::move(process));
  };
  start("coordinator", "gshard_coordinator", false);
  for (int r = 0; r < kRouters; ++r) {
    start(absl::StrCat("router-", r), "gshard_router", true);
  }
  for (int w = 0; w < kWorkers; ++w) {
    start(absl::StrCat("worker-", w), "gshard_expert_worker", true);
  }
  const auto cpu = [&] {
    double sum = 0.0;
    for (const auto& process : processes) sum += CpuSeconds(process->pid());
    return sum;
  };

  const auto channel = CreateChannel(socket("coordinator"));
  CHECK(channel.ok());
  const auto stub = v1::CoordinatorService::NewStub(*channel);
  v1::SubmitJobRequest request;
  *request.mutable_job() = TrainingJobToProto(job);
  v1::SubmitJobResponse submitted;
  grpc::ClientContext submitting;
  submitting.set_wait_for_ready(true);
  CHECK(stub->SubmitJob(&submitting, request, &submitted).ok());
  v1::WatchJobRequest watch;
  watch.set_job(submitted.job());
  grpc::ClientContext watching;
  const auto lines = stub->WatchJob(&watching, watch);
  v1::JobProgress line;
  double begin = 0.0, end = 0.0;
  while (lines->Read(&line)) {
    if (begin == 0.0 && line.step() >= kWarmUp) begin = cpu();
    // The steps are done, but the last checkpoint is not.
    if (end == 0.0 && line.step() >= kSteps) end = cpu();
  }
  if (line.state() != v1::JOB_STATE_SUCCEEDED || begin == 0.0) return 0.0;
  return end - begin;
}

struct Local {
  double cpu_seconds = 0.0;
  double tokens = 0.0;
};

// Runs the same steps in this process with the tokenizer that the processes
// made.
absl::StatusOr<Local> RunHere(TrainingJob job) {
  ASSIGN_OR_RETURN(
      const auto tokenizer,
      Tokenizer::Load(job.checkpoint.directory + "/tokenizer/source.model"));
  job.model.source_vocabulary_size = job.model.target_vocabulary_size =
      tokenizer->vocab_size();
  ASSIGN_OR_RETURN(const Corpus corpus, ReadCorpus(job.data.train_path));
  ASSIGN_OR_RETURN(
      const Dataset dataset,
      Dataset::Create(corpus, *tokenizer,
                      {.max_length = static_cast<int32_t>(job.max_length)}));
  ASSIGN_OR_RETURN(
      const BatchOrder order,
      BatchOrder::Create(
          dataset.lengths(),
          {.seed = static_cast<uint64_t>(job.seed),
           .tokens = static_cast<int32_t>(job.tokens_per_microbatch),
           .microbatches_per_step =
               static_cast<int32_t>(job.microbatches_per_step)},
          dataset.target_lengths()));
  ASSIGN_OR_RETURN(const auto trainer, LocalTrainer::Create(job));
  Local local;
  double begin = 0.0;
  for (int64_t step = 1; step <= kSteps; ++step) {
    ASSIGN_OR_RETURN(
        const StepResult result, trainer->Step([&](int64_t s, int64_t index) {
          return *ReadBatch(dataset, order.Microbatch(s - 1, index));
        }));
    if (step > kWarmUp) {
      local.tokens += static_cast<double>(result.statistics.target_tokens);
    }
    if (step == kWarmUp) begin = CpuSeconds(::getpid());
  }
  local.cpu_seconds = CpuSeconds(::getpid()) - begin;
  return local;
}

void BM_Job(benchmark::State& state) {
  InitCompute();
  SetComputeThreads(2);
  const TemporaryDirectory directory;
  const TrainingJob job = DemoJob(directory.path());
  double processes = 0.0;
  absl::StatusOr<Local> local;
  for (auto _ : state) {
    processes = CpuSecondsOfProcesses(job, directory.path());
    if (processes > 0.0) local = RunHere(job);
  }
  SetComputeThreads(1);
  if (processes == 0.0 || !local.ok()) {
    return state.SkipWithError("the job did not succeed");
  }
  state.counters["tokens/cpu_s"] = local->tokens / processes;
  state.counters["local_tokens/cpu_s"] = local->tokens / local->cpu_seconds;
}
BENCHMARK(BM_Job)->Iterations(1)->UseRealTime()->Unit(benchmark::kSecond);

}  // namespace
}  // namespace gshard

BENCHMARK_MAIN();
