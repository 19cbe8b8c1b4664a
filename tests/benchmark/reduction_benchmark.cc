// Compares the two ways to sum dense gradients, in the coordinator and among
// the routers over gloo: bytes in and out of the coordinator per step, and time
// per step. A whole cluster in this process, on TCP; a dense model with tiny
// microbatches, so that a step is mostly gradients.
//
// Run from the project's root: build/release/benchmark/reduction_benchmark

#include <benchmark/benchmark.h>
#include <dirent.h>
#include <grpcpp/grpcpp.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "expert_worker/expert_worker_process.h"
#include "proto/gshard/v1/coordinator.grpc.pb.h"
#include "router/router_process.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/config/training_job_proto.h"
#include "services/coordinator/coordinator_process.h"
#include "services/coordinator/membership/session_plan.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/wire/status.h"

namespace gshard {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSteps = 12, kFirst = 2;  // measured after the first ones

TrainingJob DenseJob(int64_t width, int routers, const std::string& directory) {
  TrainingJob job;
  job.name = "benchmark";
  ModelConfig& model = job.model;
  model.name = "dense";
  model.encoder_layers = model.decoder_layers = 2;
  model.model_width = width;
  model.ffn_width = 4 * width;
  model.heads = 4;
  model.head_width = width / 4;
  model.experts = 0;
  model.source_vocabulary_size = model.target_vocabulary_size = 300;
  model.shared_vocabulary = true;
  model.max_positions = 64;
  job.data.train_path = "tests/data/names.tsv";
  job.steps = kSteps;
  job.microbatches_per_step = 4;
  job.tokens_per_microbatch = 48;
  job.max_length = 48;
  job.optimizer = AdamConfig();
  job.schedule = {.multiplier = 0.02, .warmup_steps = 4};
  job.checkpoint.directory = directory + "/checkpoints";
  job.checkpoint.every_steps = 0;
  job.progress_every_steps = 1;
  job.min_routers = routers;
  return job;
}

// Bytes, both ways, of all connections of this process with local port `port`.
double BytesAt(int port) {
  double bytes = 0;
  DIR* const fds = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(fds)) {
    const int fd = std::atoi(entry->d_name);
    sockaddr_in6 address = {};  // or sockaddr_in, with the port in its place
    socklen_t size = sizeof(address);
    tcp_info info = {};
    socklen_t info_size = sizeof(info);
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
        (address.sin6_family != AF_INET && address.sin6_family != AF_INET6) ||
        ntohs(address.sin6_port) != port ||
        getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &info_size) != 0) {
      continue;
    }
    bytes += static_cast<double>(info.tcpi_bytes_received) +
             static_cast<double>(info.tcpi_bytes_acked);
  }
  closedir(fds);
  return bytes;
}

struct Measured {
  double seconds = 0;  // per step
  double bytes = 0;    // per step, at the coordinator
};

absl::StatusOr<Measured> Measure(ReduceWay way, int routers, int64_t width,
                                 const std::string& directory) {
  CoordinatorProcessOptions options;
  options.process.listen = "127.0.0.1:0";
  options.coordinator.reduce = way;
  CoordinatorProcess coordinator(options);
  RETURN_IF_ERROR(coordinator.Start());
  const std::string address = coordinator.address();
  ProcessOptions member;
  member.coordinator = address;
  member.listen = "127.0.0.1:0";
  ExpertWorkerOptions worker_options;  // idle, but a job needs one
  worker_options.process = member;
  ExpertWorkerProcess worker(worker_options);
  RETURN_IF_ERROR(worker.Start());
  std::vector<std::unique_ptr<RouterProcess>> processes;
  for (int r = 0; r < routers; ++r) {
    RouterOptions router;
    router.process = member;
    processes.push_back(std::make_unique<RouterProcess>(router));
    RETURN_IF_ERROR(processes.back()->Start());
  }
  ASSIGN_OR_RETURN(const auto channel, CreateChannel(address));
  const auto stub = v1::CoordinatorService::NewStub(channel);
  v1::SubmitJobRequest submit;
  *submit.mutable_job() =
      TrainingJobToProto(DenseJob(width, routers, directory));
  v1::SubmitJobResponse submitted;
  grpc::ClientContext submitting;
  RETURN_IF_ERROR(
      FromGrpcStatus(stub->SubmitJob(&submitting, submit, &submitted)));
  v1::WatchJobRequest watch;
  watch.set_job(submitted.job());
  grpc::ClientContext watching;
  const auto stream = stub->WatchJob(&watching, watch);
  const int port = std::atoi(address.substr(address.rfind(':') + 1).c_str());
  struct Mark {
    Clock::time_point time;
    double bytes;
  };
  std::map<int64_t, Mark> marks;
  v1::JobProgress line;
  while (stream->Read(&line)) {
    if (line.state() != v1::JOB_STATE_RUNNING || line.step() < 1) continue;
    marks.try_emplace(line.step(), Mark{Clock::now(), BytesAt(port)});
  }
  RETURN_IF_ERROR(FromGrpcStatus(stream->Finish()));
  if (line.state() != v1::JOB_STATE_SUCCEEDED || marks.count(kFirst) == 0) {
    return absl::AbortedError(
        absl::StrCat("the job did not succeed: ",
                     FromProtoStatus(line.status()).ToString()));
  }
  const Mark& first = marks.at(kFirst);
  const auto& [last_step, last] = *marks.rbegin();
  const double steps = static_cast<double>(last_step - kFirst);
  return Measured{
      .seconds =
          std::chrono::duration<double>(last.time - first.time).count() / steps,
      .bytes = (last.bytes - first.bytes) / steps};
}

void BM_Reduce(benchmark::State& state, ReduceWay way) {
  SetLogThreshold(LogSeverity::kError);
  const int routers = static_cast<int>(state.range(0));
  const int64_t width = state.range(1);
  std::string directory =
      (std::filesystem::temp_directory_path() / "gshard_reduce.XXXXXX")
          .string();
  if (mkdtemp(directory.data()) == nullptr) {
    state.SkipWithError("no temporary directory");
    return;
  }
  absl::StatusOr<Measured> measured;
  for (auto _ : state) measured = Measure(way, routers, width, directory);
  std::filesystem::remove_all(directory);
  if (!measured.ok()) {
    state.SkipWithError(measured.status().ToString().c_str());
    return;
  }
  double dense = 0;
  for (const ParameterSpec& spec :
       ParametersOf(DenseJob(width, routers, "").model, false)) {
    dense += static_cast<double>(NumElements(spec.dims)) * sizeof(float);
  }
  state.counters["dense_MB"] = dense * 1e-6;
  state.counters["coordinator_kB/step"] = measured->bytes * 1e-3;
  state.counters["step_ms"] = measured->seconds * 1e3;
}

BENCHMARK_CAPTURE(BM_Reduce, coordinator, ReduceWay::kCoordinator)
    ->ArgNames({"routers", "width"})
    ->ArgsProduct({{2, 4}, {128, 256, 512}})
    ->Iterations(1)
    ->UseRealTime();
BENCHMARK_CAPTURE(BM_Reduce, gloo, ReduceWay::kGloo)
    ->ArgNames({"routers", "width"})
    ->ArgsProduct({{2, 4}, {128, 256, 512}})
    ->Iterations(1)
    ->UseRealTime();

}  // namespace
}  // namespace gshard

BENCHMARK_MAIN();
