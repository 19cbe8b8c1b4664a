// The overhead of processes: what a coordinator, routers and expert workers in
// processes of their own do in a second of CPU time, and what this process does
// alone. Both produce the same bits.
//
//   BM_Job/demo        the job of demo.sh, by two routers and two workers
//   BM_Job/wide/TYPE   the job of a model of M 512, by one router and four
//                      workers; then translation with this model, 32 sentences
//                      a call, greedy
//
// The text is made-up words.
//
// Run from the project's root: build/release/benchmark/job_benchmark

#include <benchmark/benchmark.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <iterator>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "proto/gshard/v1/translation.grpc.pb.h"
#include "services/base/check.h"
#include "services/base/parallel.h"
#include "services/base/random.h"
#include "services/base/status_macros.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "services/decoding/translator.h"
#include "services/model/parameters.h"
#include "services/model/transformer.h"
#include "services/ops/matmul.h"
#include "services/rpc/client/channel.h"
#include "services/tokenizer/tokenizer.h"
#include "services/train/parameter_source.h"
#include "tests/benchmark/process_system.h"
#include "tests/reference/local_job.h"
#include "tests/testing/translate_all.h"

namespace gshard {
namespace {

constexpr int64_t kSentences = 32;  // of a call
constexpr int kCalls = 8;

// Steps that are not timed.
int64_t WarmUp(const TrainingJob& job) { return job.steps / 6; }

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

TrainingJob DemoJob() {
  auto job = LoadTrainingJob("deploy/config/demo_job.textproto");
  CHECK(job.ok());
  job->data.dev_path.clear();
  job->validation = {};
  job->serve_as.clear();
  job->summary_directory.clear();
  job->progress_every_steps = 1;
  job->time_limit_seconds = 0;
  job->schedule.cooldown_steps = 0;
  job->steps = 120;
  job->min_routers = job->min_workers = 2;
  return *std::move(job);
}

// Learns next to nothing, so that translations are long.
TrainingJob WideJob(ComputeType type) {
  TrainingJob job = DemoJob();
  job.name = job.serve_as = "wide";
  ModelConfig& model = job.model;
  model.compute_type = type;
  model.decoder_layers = 2;
  model.model_width = 512;
  model.ffn_width = 2048;
  model.expert_width = 1024;
  model.experts = 16;
  model.heads = 8;
  model.head_width = 64;
  job.tokens_per_microbatch = 1024;
  job.schedule.multiplier = 1e-6;
  job.steps = 6;
  job.min_routers = 1;
  job.min_workers = 4;
  return job;
}

// Text to train on, at the job's path.
void WriteText(const TrainingJob& job) {
  std::ofstream text(job.data.train_path);
  for (uint64_t i = 0; i < 6000; ++i) {
    text << "de\t" << Words(FoldIn(1, i)) << "\t" << Words(FoldIn(2, i))
         << "\n";
  }
}

// CPU time of all processes for the steps after the warm-up; 0 if the job
// fails.
double TrainByProcesses(const TrainingJob& job, ProcessSystem& system) {
  v1::WatchJobRequest watch;
  watch.set_job(system.Submit(job));
  grpc::ClientContext watching;
  const auto lines = system.coordinator().WatchJob(&watching, watch);
  v1::JobProgress line;
  double begin = 0.0, end = 0.0;
  while (lines->Read(&line)) {
    if (begin == 0.0 && line.step() >= WarmUp(job)) begin = system.CpuSeconds();
    // The steps are done, but the last checkpoint is not.
    if (end == 0.0 && line.step() >= job.steps) end = system.CpuSeconds();
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
absl::StatusOr<Local> TrainHere(const TrainingJob& job) {
  ASSIGN_OR_RETURN(const auto trained,
                   LocalJob::Create(job, job.checkpoint.directory +
                                             "/tokenizer/source.model"));
  Local local;
  double begin = 0.0;
  for (int64_t step = 1; step <= job.steps; ++step) {
    ASSIGN_OR_RETURN(const StepResult result, trained->Step());
    if (step > WarmUp(job)) {
      local.tokens += static_cast<double>(result.statistics.target_tokens);
    }
    if (step == WarmUp(job)) begin = CpuSeconds(::getpid());
  }
  local.cpu_seconds = CpuSeconds(::getpid()) - begin;
  return local;
}

// Some of the text that the model was trained on.
std::vector<std::string> Sentences(int call) {
  std::vector<std::string> sentences;
  for (int64_t i = 0; i < kSentences; ++i) {
    sentences.push_back(Words(FoldIn(1, call * kSentences + i)));
  }
  return sentences;
}

// CPU time of all processes for the calls after the first.
double TranslateByProcesses(ProcessSystem& system) {
  const auto channel = CreateChannel(system.Address("router-0"));
  CHECK(channel.ok());
  const auto stub = v1::TranslationService::NewStub(*channel);
  double begin = 0.0;
  for (int call = 0; call <= kCalls; ++call) {
    v1::TranslateRequest request;
    for (std::string& text : Sentences(call)) {
      request.add_sentences()->set_text(std::move(text));
      request.mutable_sentences()->rbegin()->set_source_language("de");
    }
    request.mutable_options()->set_greedy(true);
    v1::TranslateResponse response;
    while (true) {
      grpc::ClientContext context;
      SetDeadline(context, std::chrono::seconds(60));
      if (stub->Translate(&context, request, &response).ok()) break;
      CHECK(call == 0);  // until which the model may not be served
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    if (call == 0) begin = system.CpuSeconds();
  }
  return system.CpuSeconds() - begin;
}

// Translates the same in this process.
absl::StatusOr<Local> TranslateHere(const TrainingJob& job) {
  ASSIGN_OR_RETURN(const auto checkpoint,
                   OpenLatestCheckpoint(job.checkpoint.directory));
  ASSIGN_OR_RETURN(std::string bytes, checkpoint->ReadTokenizer());
  ASSIGN_OR_RETURN(const auto tokenizer,
                   Tokenizer::FromModelBytes(std::move(bytes)));
  ASSIGN_OR_RETURN(const int32_t tag, tokenizer->LanguageTagId("de"));
  ModelConfig model = job.model;
  model.source_vocabulary_size = model.target_vocabulary_size =
      tokenizer->vocab_size();
  ASSIGN_OR_RETURN(Program encode, BuildEncodeProgram(model));
  ASSIGN_OR_RETURN(Program decode, BuildDecodeProgram(model));
  const Translator translator(
      model, std::move(encode), std::move(decode),
      {.bos = tokenizer->bos_id(),
       .eos = tokenizer->eos_id(),
       .never = {tokenizer->pad_id(), tokenizer->bos_id(), tag},
       .unk = tokenizer->unk_id()});
  std::vector<int32_t> experts(model.experts);
  std::iota(experts.begin(), experts.end(), 0);
  ASSIGN_OR_RETURN(
      const TensorMap parameters,
      ReadParameters(ModelParameters(model), experts, checkpoint.get(),
                     /*seed=*/0, translator.weight_forms()));
  Local local;
  double begin = 0.0;
  for (int call = 0; call <= kCalls; ++call) {
    std::vector<SourceSentence> sentences;
    for (const std::string& text : Sentences(call)) {
      ASSIGN_OR_RETURN(std::vector<int32_t> ids, tokenizer->Encode(text));
      ids.insert(ids.begin(), tag);
      ids.push_back(tokenizer->eos_id());
      sentences.push_back({.ids = std::move(ids),
                           .options = {.beam_size = 1, .length_penalty = 0}});
    }
    ASSIGN_OR_RETURN(const auto translations,
                     TranslateAll(translator, sentences, parameters));
    if (call == 0) {
      begin = CpuSeconds(::getpid());
      continue;
    }
    for (const auto& hypotheses : translations) {
      local.tokens += hypotheses[0].token_count;
    }
  }
  local.cpu_seconds = CpuSeconds(::getpid()) - begin;
  return local;
}

// Reports both, in tokens per second of CPU time.
absl::Status Report(benchmark::State& state, const std::string& what,
                    double processes, const absl::StatusOr<Local>& local) {
  RETURN_IF_ERROR(local.status());
  if (processes == 0.0) return absl::InternalError("the job did not succeed");
  state.counters[what] = local->tokens / processes;
  state.counters["local_" + what] = local->tokens / local->cpu_seconds;
  return absl::OkStatus();
}

absl::Status RunJob(benchmark::State& state, TrainingJob job) {
  // Threads as `gshard up` shares out those of two cores.
  ProcessSystem system(static_cast<int>(job.min_routers),
                       static_cast<int>(job.min_workers), {"--threads=1"},
                       {"--threads=1"});
  job.data.train_path = system.directory() + "/train.tsv";
  job.checkpoint.directory = system.directory() + "/checkpoints";
  WriteText(job);
  const double trained = TrainByProcesses(job, system);
  RETURN_IF_ERROR(Report(state, "tokens/cpu_s", trained, TrainHere(job)));
  if (job.serve_as.empty()) return absl::OkStatus();
  const double translated = TranslateByProcesses(system);
  return Report(state, "translated/cpu_s", translated, TranslateHere(job));
}

void BM_Job(benchmark::State& state, const TrainingJob& job) {
  InitCompute();
  SetComputeThreads(2);
  for (auto _ : state) {
    const absl::Status status = RunJob(state, job);
    if (!status.ok()) state.SkipWithError(status.ToString().c_str());
  }
  SetComputeThreads(1);
}
void Once(benchmark::internal::Benchmark* benchmark) {
  benchmark->Iterations(1)->UseRealTime()->Unit(benchmark::kSecond);
}
BENCHMARK_CAPTURE(BM_Job, demo, DemoJob())->Apply(Once);
BENCHMARK_CAPTURE(BM_Job, wide / float32, WideJob(ComputeType::kFloat32))
    ->Apply(Once);
BENCHMARK_CAPTURE(BM_Job, wide / bfloat16, WideJob(ComputeType::kBFloat16))
    ->Apply(Once);

}  // namespace
}  // namespace gshard

BENCHMARK_MAIN();
