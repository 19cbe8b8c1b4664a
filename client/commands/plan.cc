// gshard plan: estimates a model's cost.

#include "services/train/plan.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/commands.h"
#include "services/base/status_macros.h"
#include "services/config/model_config.h"
#include "services/config/training_job.h"
#include "services/cuda/ops/open_device.h"
#include "services/train/plan_report.h"

namespace gshard {
namespace {

// GPUs that the kernels are built for, with the GiB that one without other work
// has free once CUDA and the kernels are loaded.
struct GpuModel {
  const char* name;
  int64_t memory_gib;
};
constexpr GpuModel kGpuModels[] = {
    {"a10", 21},  {"a100-40", 38}, {"a100-80", 78}, {"l4", 21},
    {"l40s", 43}, {"h100", 78},    {"h200", 139},   {"b200", 177}};

// Memory of `device`: a model of kGpuModels, or cuda:N of this machine. Errors:
// InvalidArgument if it is neither; those of OpenDevice.
absl::StatusOr<int64_t> DeviceMemory(const std::string& device) {
  std::string names;
  for (const GpuModel& model : kGpuModels) {
    if (absl::EqualsIgnoreCase(device, model.name)) {
      return model.memory_gib << 30;
    }
    absl::StrAppend(&names, model.name, ", ");
  }
  if (!absl::StartsWith(device, "cuda:")) {
    return UsageError(absl::StrCat("--device: expected ", names,
                                   "or cuda:N, got '", device,
                                   "'; for another GPU, say --memory_gib"));
  }
  ASSIGN_OR_RETURN(const auto opened, OpenDevice(device));
  return opened->memory_bytes();
}

}  // namespace

absl::Status PlanCommand(Arguments arguments, Console& console) {
  std::string config, job_path, optimizer, device;
  PlanOptions options;
  int64_t tokens_per_microbatch = 0, memory_gib = 0;
  bool json = false;
  std::string reduce = "coordinator";
  Flags flags(
      "gshard plan",
      "Says what a model costs: parameters, memory of coordinator, "
      "routers and expert workers for training and serving, bytes "
      "exchanged per token. Computed from its configuration; nothing is "
      "allocated.");
  flags.Text("config", &config, "FILE", "ModelConfig as protobuf text");
  flags.Text("job", &job_path, "FILE",
             "TrainingJob as protobuf text, in place of --config");
  flags.Integer("routers", &options.routers, 1, 65536, "routers");
  flags.Integer("workers", &options.workers, 1, 65536, "expert workers");
  flags.Integer(
      "tokens_per_microbatch", &tokens_per_microbatch, 0, 16777216,
      "tokens of a microbatch, on either side; 0: the job's, or 4096");
  flags.Choice("optimizer", &optimizer, {"adafactor", "adam"},
               "what keeps state beside the parameters; left out: the job's, "
               "or adafactor");
  flags.Choice("reduce", &reduce, {"coordinator", "gloo", "nccl"},
               "the coordinator's --reduce: who sums dense gradients and "
               "updates dense parameters");
  flags.Integer("memory_gib", &memory_gib, 0, 1 << 20,
                "GiB that each router and worker has, on its GPU or its host: "
                "says what fits, and how many workers are needed; 0: unknown");
  flags.Text("device", &device, "GPU",
             "the same for routers and workers with a GPU each: h100, h200 or "
             "another model, or cuda:N of this machine");
  flags.Bool("json", &json, "print one JSON object");
  flags.Example(
      "gshard plan --config deploy/config/gshard_2048e_36l.textproto --routers "
      "16 --workers 64 --device h100");
  flags.Example("gshard plan --job deploy/config/demo_job.textproto");
  ASSIGN_OR_RETURN(const auto parsed, ParseFlags(flags, arguments, console));
  if (!parsed.has_value()) return absl::OkStatus();

  if (config.empty() == job_path.empty()) {
    return UsageError("expected either --config or --job");
  }
  ModelConfig model;
  if (job_path.empty()) {
    ASSIGN_OR_RETURN(model, LoadModelConfig(config));
  } else {
    ASSIGN_OR_RETURN(const TrainingJob job, LoadTrainingJob(job_path));
    model = job.model;
    options.tokens_per_microbatch = job.tokens_per_microbatch;
    options.optimizer = job.optimizer;
    options.microbatches_per_step = job.microbatches_per_step;
  }
  options.routers_reduce = reduce != "coordinator";
  if (tokens_per_microbatch > 0) {
    options.tokens_per_microbatch = tokens_per_microbatch;
  }
  if (optimizer == "adafactor") options.optimizer = AdafactorConfig();
  if (optimizer == "adam") options.optimizer = AdamConfig();
  options.memory_bytes = memory_gib << 30;
  if (!device.empty()) {
    if (memory_gib > 0) {
      return UsageError("expected either --device or --memory_gib");
    }
    ASSIGN_OR_RETURN(options.memory_bytes, DeviceMemory(device));
  }
  ASSIGN_OR_RETURN(const Plan plan, MakePlan(model, options));
  *console.out << (json ? PlanToJson(plan) : PlanToText(plan));
  return absl::OkStatus();
}

}  // namespace gshard
