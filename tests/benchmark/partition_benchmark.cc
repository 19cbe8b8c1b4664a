// The cost of partitioning, and of running a partitioned program.
//
//   partition_benchmark [FILE]   from the project's root
//
// 1. The training step of the ModelConfig in FILE, by default the paper's 36
//    layers of 2048 experts, for D routers and D expert workers: seconds of
//    Partition, the best of kRounds, and the nodes of each role. Rounds
//    alternate between values of D, so that a busy machine affects them alike.
//    Aim: at most 1.2 times the time of D = 2, and the same nodes.
// 2. A training step of a small MoE model on one device: partitioned for a mesh
//    of one and unpartitioned, alternating, medians. Aim: within 3%.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "services/base/check.h"
#include "services/base/monotonic_time.h"
#include "services/base/status_macros.h"
#include "services/config/model_config.h"
#include "services/graph/executor.h"
#include "services/model/transformer.h"
#include "services/ops/matmul.h"
#include "services/partition/partitioner.h"
#include "tests/services/collectives/local_world.h"
#include "tests/testing/mesh_devices.h"
#include "tests/testing/tiny_model.h"

namespace gshard {
namespace {

constexpr int kRounds = 7;
constexpr int kSteps = 41;

using Clock = std::chrono::steady_clock;

double Median(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

std::vector<int64_t> NodesByRole(const Partitioned& partitioned, size_t roles) {
  std::vector<int64_t> nodes(roles, 0);
  for (const Node& node : partitioned.program.nodes) {
    ++nodes[partitioned.roles[node.outputs[0]]];
  }
  return nodes;
}

absl::Status PrintPartitioning(const std::string& file) {
  ASSIGN_OR_RETURN(ModelConfig config, LoadModelConfig(file));
  // The group size of a router's microbatch, so that gates are partitioned too.
  if (config.gate.group_size == 0) config.gate.group_size = 4096;
  const Clock::time_point start = Clock::now();
  ASSIGN_OR_RETURN(const Program program,
                   BuildTrainProgram(config, LossConfig()));
  std::printf("%s: %zu nodes, built in %.3f s\n", program.name.c_str(),
              program.nodes.size(), SecondsSince(start));
  const std::vector<int64_t> devices = {2, 16, 128, 2048};
  std::map<int64_t, double> best;
  std::map<int64_t, std::vector<int64_t>> nodes;
  for (int round = 0; round < kRounds; ++round) {
    for (const int64_t d : devices) {
      ASSIGN_OR_RETURN(const DeviceMesh mesh,
                       DeviceMesh::Create(
                           {{"router", d, "router"}, {"expert", d, "worker"}}));
      const Clock::time_point begin = Clock::now();
      ASSIGN_OR_RETURN(const Partitioned partitioned, Partition(program, mesh));
      const double seconds = SecondsSince(begin);
      const auto [entry, is_new] = best.emplace(d, seconds);
      entry->second = std::min(entry->second, seconds);
      nodes[d] = NodesByRole(partitioned, mesh.roles().size());
    }
  }
  std::printf("     D   seconds  to D=2  nodes: router  worker\n");
  for (const int64_t d : devices) {
    std::printf("%6ld  %8.3f  %6.2f  %13ld  %6ld%s\n", d, best[d],
                best[d] / best[2], nodes[d][0], nodes[d][1],
                nodes[d] == nodes[2] ? "" : "  DIFFERENT");
  }
  return absl::OkStatus();
}

ModelConfig SmallModel() {
  ModelConfig config = TinyConfig();
  config.name = "small";
  config.model_width = 128;
  config.ffn_width = 512;
  config.expert_width = 512;
  config.heads = 4;
  config.head_width = 32;
  config.experts = 16;
  config.source_vocabulary_size = 2000;
  config.target_vocabulary_size = 2000;
  config.max_positions = 64;
  config.gate.training_policy = SecondExpertPolicy::kRandom;
  config.gate.training_capacity_factor = 1.0;
  return config;
}

std::vector<SentencePair> SmallPairs(const ModelConfig& config) {
  std::vector<SentencePair> pairs(16);
  for (size_t i = 0; i < pairs.size(); ++i) {
    for (size_t p = 0; p < 32; ++p) {
      pairs[i].source.push_back((i * 97 + p * 31) %
                                config.source_vocabulary_size);
      pairs[i].target.push_back((i * 89 + p * 37) %
                                config.target_vocabulary_size);
    }
  }
  return pairs;
}

absl::Status PrintRunning() {
  const ModelConfig config = SmallModel();
  ASSIGN_OR_RETURN(const Program program,
                   BuildTrainProgram(config, LossConfig()));
  ASSIGN_OR_RETURN(const DeviceMesh mesh,
                   DeviceMesh::Create({{"router", 1, ""}, {"expert", 1, ""}}));
  ASSIGN_OR_RETURN(Partitioned partitioned, Partition(program, mesh));
  const TensorMap parameters = TinyParameters(config, 1);
  const TensorMap inputs = TrainInputs(config, SmallPairs(config));
  const Executor whole(program), parted(partitioned.program);
  std::vector<double> whole_seconds, parted_seconds;
  RETURN_IF_ERROR(RunOnDevices(1, [&](World& world) -> absl::Status {
    MeshDevices devices(mesh, world);
    const auto run = [&](const Executor& executor,
                         std::vector<double>* seconds) {
      const Clock::time_point begin = Clock::now();
      const absl::Status status =
          executor
              .Run(inputs, parameters,
                   {.context = RunContext().With<DeviceGroups>(&devices)})
              .status();
      seconds->push_back(SecondsSince(begin));
      return status;
    };
    // The program that runs first alternates as well.
    for (int step = 0; step < kSteps; ++step) {
      for (const bool is_whole : {step % 2 == 0, step % 2 != 0}) {
        RETURN_IF_ERROR(is_whole ? run(whole, &whole_seconds)
                                 : run(parted, &parted_seconds));
      }
    }
    return absl::OkStatus();
  }));
  std::printf(
      "one device, %zu nodes whole and %zu partitioned: %.2f ms and %.2f ms a "
      "step, ratio %.3f\n",
      program.nodes.size(), partitioned.program.nodes.size(),
      1e3 * Median(whole_seconds), 1e3 * Median(parted_seconds),
      Median(parted_seconds) / Median(whole_seconds));
  return absl::OkStatus();
}

}  // namespace
}  // namespace gshard

int main(int argc, char** argv) {
  using namespace gshard;
  InitCompute();
  absl::Status status = PrintPartitioning(
      argc > 1 ? argv[1] : "deploy/config/gshard_2048e_36l.textproto");
  if (status.ok()) status = PrintRunning();
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
