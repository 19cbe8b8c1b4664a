// An expert worker's service, called as routers call it, by one thread that
// waits for each reply: the cost of an expert across a socket.
//
//   Forward   an evaluation call: rows in, results out
//   Step      a training step: forward and backward of 2 experts, one in the
//             encoder and one in the decoder, and their update with Adam; the
//             coordinator's two messages are function calls here
//
// Ways tcp and unix pass frames through shared memory, unix_socket does not.
// Both ends are in this process. `GB/s` counts the bytes of tensors, both ways.
// An expert of width 1 shows the cost of the exchange itself. `cpu_us` is the
// CPU time of both ends per call or step.

#include <benchmark/benchmark.h>

#include <chrono>
#include <ctime>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "expert_worker/expert_service.h"
#include "router/workers/worker_connection.h"
#include "services/base/check.h"
#include "services/base/log.h"
#include "services/base/parallel.h"
#include "services/ops/matmul.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/server/server.h"
#include "tests/expert_worker/training_model.h"
#include "tests/integration/temporary_directory.h"

namespace gshard {
namespace {

constexpr char kSession[] = "job/1";
constexpr std::chrono::milliseconds kTimeout{60'000};

TrainingJob OneExpert(int64_t width, int64_t hidden) {
  TrainingJob job = SmallJob(AdamConfig());
  ModelConfig& model = job.model;
  model.encoder_layers = model.decoder_layers = 1;
  model.model_width = width;
  model.ffn_width = model.expert_width = hidden;
  model.heads = 1;
  model.head_width = 8;
  model.experts = 1;
  model.max_positions = 64;
  model.dropout = {.input = 0, .residual = 0, .attention = 0};
  model.gate.training_capacity_factor = 0;
  job.microbatches_per_step = 1;
  return job;
}

Batch BatchOf(int64_t tokens) {
  const int64_t length = std::min<int64_t>(tokens, 32);
  const int64_t sentences = tokens / length;
  CHECK(sentences * length == tokens);
  Tensor ids(ElementType::kInt32, {sentences, length});
  std::fill_n(ids.i32(), ids.size(), 5);
  const Tensor lengths = Tensor::Ints(
      {sentences},
      std::vector<int32_t>(sentences, static_cast<int32_t>(length)));
  return {.source = ids,
          .source_lengths = lengths,
          .target_input = ids,
          .target_labels = ids,
          .target_lengths = lengths,
          .source_tokens = tokens,
          .target_tokens = tokens};
}

// A recorded call, which owns its tensors.
struct RecordedCall {
  std::string segment;
  std::vector<std::pair<std::string, Tensor>> inputs;
};

// A worker, a router's connection to it, and the calls that a router makes for
// `rows` tokens a side, in evaluation and in a training step.
class Service {
 public:
  // At most `shared_bytes` of memory are shared; 0 disables sharing.
  Service(const std::string& address, int64_t shared_bytes, int64_t rows,
          int64_t width, int64_t hidden)
      : job_(OneExpert(width, hidden)) {
    const RolePrograms training = SplitTraining(job_);
    const auto evaluation = SplitRoles(*BuildEvaluateProgram(job_.model));
    CHECK(evaluation.ok());
    WorkerSessionSpec spec = TrainingSpec(job_, training.segments, {0});
    spec.evaluation_segments = evaluation->segments;
    CHECK(sessions_.Load(kSession, std::move(spec)).ok());

    const Batch batch = BatchOf(rows);
    const TensorMap dense = DenseParameters();
    LocalExchange evaluating = Recorder(/*step=*/0, &evaluation_);
    CHECK(MicrobatchRunner(job_.model, evaluation->router)
              .Evaluate(batch, job_.seed, 0, dense, &evaluating)
              .ok());
    // Recording runs a whole microbatch, which thereby is the first step.
    LocalExchange stepping = Recorder(/*step=*/1, &step_);
    CHECK(MicrobatchRunner(job_.model, training.router)
              .Run(batch, job_.seed, 1, 0, dense, &stepping)
              .ok());
    Commit();

    const SharingOptions sharing{.account = shared_bytes};
    service_ = std::make_unique<ExpertService>(
        &sessions_,
        ExpertServiceOptions{
            .queue = {}, .stream = {}, .sharing = sharing, .tracer = {}});
    server_ = std::make_unique<ServerShell>(ServerOptions{.address = address});
    server_->AddService(service_.get(),
                        v1::ExpertWorkerService::service_full_name());
    CHECK(server_->Start().ok());
    connection_ = std::make_unique<WorkerConnection>(
        "worker", *CreateChannel(server_->address()), StreamOptions(), Tracer(),
        sharing);
  }
  ~Service() {
    connection_.reset();
    server_->Drain(std::chrono::seconds(5));
  }

  void Forward() { Wait(evaluation_[0], 0); }
  void Step() {
    for (const RecordedCall& call : step_) Wait(call, next_step_);
    Commit();
  }

  // The tensor bytes of all calls and replies.
  int64_t bytes() const { return bytes_; }

 private:
  TensorMap DenseParameters() const {
    ParameterStore store(SpecsOf(job_.model, /*per_expert=*/false), {},
                         MakeOptimizer(job_.optimizer));
    CHECK(store.Load(nullptr, job_.seed).ok());
    return store.tensors();
  }

  LocalExchange Recorder(int64_t step, std::vector<RecordedCall>* calls) {
    return LocalExchange(
        {{0}},
        [this, step, calls](int, const WorkerCall& call) {
          RecordedCall& recorded =
              calls->emplace_back(RecordedCall{std::string(call.segment), {}});
          for (const auto& [name, tensor] : call.inputs) {
            recorded.inputs.emplace_back(name, tensor.Clone());
          }
          return sessions_.Find(kSession)->session().RunSegment(
              {.segment = recorded.segment, .step = step}, InputsOf(call));
        },
        step);
  }

  void Wait(const RecordedCall& recorded, int64_t step) {
    WorkerCall call = {.session = kSession,
                       .segment = recorded.segment,
                       .step = step,
                       .timeout = kTimeout};
    for (const auto& [name, tensor] : recorded.inputs) {
      call.inputs.emplace_back(name, tensor);
      bytes_ += tensor.bytes();
    }
    std::promise<absl::StatusOr<std::vector<Tensor>>> promise;
    connection_->Call(std::move(call), [&](auto replies) {
      promise.set_value(std::move(replies));
    });
    const auto replies = promise.get_future().get();
    CHECK(replies.ok());
    for (const Tensor& tensor : *replies) bytes_ += tensor.bytes();
  }

  void Commit() {
    const auto lease = sessions_.Find(kSession);
    TrainingWorkerSession& training = *lease->session().training();
    CHECK(training.PrepareStep(next_step_, {0}).ok());
    CHECK(training
              .CommitStep(next_step_, /*gradient_scale=*/1e-3,
                          /*learning_rate=*/1e-6, /*skip=*/false)
              .ok());
    ++next_step_;
  }

  const TrainingJob job_;
  SessionTable sessions_{int64_t{4} << 30};
  std::vector<RecordedCall> evaluation_, step_;
  int64_t next_step_ = 1;
  int64_t bytes_ = 0;
  std::unique_ptr<ExpertService> service_;
  std::unique_ptr<ServerShell> server_;
  std::unique_ptr<WorkerConnection> connection_;
};

enum class Way { kTcp, kUnix, kUnixSocket };

void Measure(benchmark::State& state, Way way, double rows_of_call,
             void (Service::*call)()) {
  InitCompute();
  SetLogThreshold(LogSeverity::kError);
  SetComputeThreads(2);
  const TemporaryDirectory directory;
  Service service(
      way == Way::kTcp ? "127.0.0.1:0" : "unix:" + directory.path() + "/worker",
      way == Way::kUnixSocket ? 0 : int64_t{64} << 20, state.range(0),
      state.range(1), state.range(2));
  (service.*call)();
  const int64_t before = service.bytes();
  const std::clock_t begin = std::clock();
  for (auto _ : state) (service.*call)();
  state.counters["cpu_us"] = benchmark::Counter(
      1e6 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC,
      benchmark::Counter::kAvgIterations);
  state.counters["rows/s"] =
      benchmark::Counter(rows_of_call * static_cast<double>(state.range(0)),
                         benchmark::Counter::kIsIterationInvariantRate);
  state.counters["GB/s"] =
      benchmark::Counter(1e-9 * static_cast<double>(service.bytes() - before),
                         benchmark::Counter::kIsRate);
  SetComputeThreads(1);
}

void Forward(benchmark::State& state, Way way) {
  Measure(state, way, 1, &Service::Forward);
}
void Step(benchmark::State& state, Way way) {
  Measure(state, way, 2, &Service::Step);
}

void Shapes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"rows", "M", "H"})
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond)
      ->Args({1, 512, 2048})
      ->Args({256, 512, 2048});
}
// 4 KiB and 8 MiB each way.
void Rows(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"rows", "M", "H"})
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond)
      ->Args({2, 512, 1})
      ->Args({2048, 1024, 1});
}
BENCHMARK_CAPTURE(Forward, tcp, Way::kTcp)->Apply(Shapes);
BENCHMARK_CAPTURE(Step, tcp, Way::kTcp)->Apply(Shapes);
BENCHMARK_CAPTURE(Forward, unix, Way::kUnix)->Apply(Shapes);
BENCHMARK_CAPTURE(Forward, unix, Way::kUnix)->Apply(Rows);
BENCHMARK_CAPTURE(Forward, unix_socket, Way::kUnixSocket)->Apply(Rows);

}  // namespace
}  // namespace gshard

BENCHMARK_MAIN();
