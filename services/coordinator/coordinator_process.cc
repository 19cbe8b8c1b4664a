#include "services/coordinator/coordinator_process.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/config/flags.h"
#include "services/rpc/process/process_main.h"
#include "services/storage/file.h"

namespace gshard {
namespace {

struct CoordinatorFlags {
  CoordinatorProcessOptions options;
  std::vector<std::string> models;
  std::string reduce = "coordinator";
};

Flags DeclareFlags(CoordinatorFlags* values) {
  Flags flags("gshard_coordinator",
              "Keeps membership and placement of a GShard cluster, runs its "
              "training jobs and says which models it serves.");
  ProcessOptions& process = values->options.process;
  CoordinatorOptions& options = values->options.coordinator;
  flags.Version(GSHARD_VERSION);
  AddProcessFlags(flags, &process);
  flags.Text("state_directory", &values->options.state_directory, "DIR",
             "keeps jobs and served models, so that a restarted coordinator "
             "goes on with them; empty: they are forgotten");
  flags.Text("address_file", &values->options.address_file, "FILE",
             "gets the address, as host:port, once the process serves: with "
             "port 0 in --listen the system chooses one; empty: none");
  flags.Integer("max_jobs", &options.max_jobs, 1, kMaxJobs,
                "jobs that run or wait; two thirds of them by one caller");
  flags.List("data_roots", &options.data_roots, "DIR",
             "folders that all files and folders of jobs and of models to load "
             "must lie in, links resolved; empty: they may lie anywhere that "
             "the processes can reach, which is not for production");
  flags.Integer("lease_ms", &process.lease_ms, 100, 3'600'000,
                "milliseconds of silence after which a member is cut off; give "
                "members the same");
  flags.Bool("allow_mixed_devices", &options.allow_mixed_devices,
             "let members of a role compute on CPUs and GPUs at the same "
             "time: which of them computes what then shows in the last bits "
             "of translations and of what is trained");
  flags.Duration("command_timeout", &options.command_timeout,
                 "how long a member may hold up a step, though it is there: a "
                 "frozen thread, a disk that hangs; then it is cut off as a "
                 "silent one");
  flags.Duration(
      "load_timeout", &options.load_timeout,
      "the same for loading a model and for writing a checkpoint, "
      "which take as long as the model is large; routers that load a "
      "job have a second more for each 256 KiB of its text, which "
      "they index");
  flags.Choice(
      "reduce", &values->reduce, {"coordinator", "gloo", "nccl"},
      "who sums the dense gradients of training jobs: this process, or "
      "the routers among themselves over TCP or GPUs, who then read "
      "and write checkpoints, too; the result is the same, but for last bits "
      "with routers on GPUs");
  flags.List("model", &values->models, "NAME=CHECKPOINT",
             "checkpoints to serve from the start, each under its name");
  flags.Text("models_file", &options.models_file, "FILE",
             "says which models to serve, as proto/gshard/v1/models_file.proto "
             "documents; followed when its content changes. Names in it cannot "
             "be loaded or unloaded otherwise");
  flags.Integer("min_routers", &options.min_routers, 1, 65536,
                "routers to wait for before these are loaded; what was served "
                "before a restart goes on with one");
  flags.Integer("min_workers", &options.min_workers, 0, 65536,
                "expert workers to wait for before these are loaded; likewise");
  flags.Integer("replicas", &options.replicas, 1, kMaxReplicas,
                "workers that hold each expert of a served model; with 2, one "
                "may be lost unnoticed");
  flags.Bool(
      "per_expert_metrics", &values->options.per_expert_metrics,
      "adds a series for each expert of each layer, of at most 131072 in "
      "total; more are counted together, as \"other\"");
  flags.Example(
      "gshard_coordinator --listen=0.0.0.0:7400 --tls_certificate=c.pem "
      "--tls_key=c.key --tls_ca=ca.pem --metrics_address=127.0.0.1:9400");
  flags.Example(
      "gshard_coordinator --listen=unix:/run/gshard/coordinator "
      "--model=translator=/data/checkpoints/step-00020000 "
      "--min_workers=2");
  return flags;
}

}  // namespace

CoordinatorProcess::CoordinatorProcess(CoordinatorProcessOptions options)
    : ProcessShell(options.process, "coordinator", GSHARD_VERSION),
      options_(std::move(options)),
      training_metrics_(metrics(), options_.per_expert_metrics) {
  CoordinatorOptions coordinator = options_.coordinator;
  coordinator.lease = absl::Milliseconds(options_.process.lease_ms);
  coordinator.tracer = tracer();
  coordinator.build_version = GSHARD_VERSION;
  coordinator.metrics = &training_metrics_;
  coordinator.member_counts = metrics().AddGaugeFamily(
      "gshard_members", "Members with a lease.", {"role"});
  coordinator.serving_gauges = ServingGauges(metrics());
  coordinator.models_file_rejected = metrics().AddGauge(
      "gshard_models_file_rejected",
      "1 while the models file is not followed, for a reason that is logged: "
      "it cannot be read, is not valid, or names what may not be served.");
  coordinator.models_file_models = metrics().AddGaugeFamily(
      "gshard_models_file_models",
      "Models of the models file that are served as it says, and that are not "
      "yet.",
      {"state"});
  coordinator.asks_callers = !options_.process.security.auth_file.empty();
  coordinator_ = std::make_unique<Coordinator>(std::move(coordinator));
  FrameLimits limits;
  limits.max_bytes = MaxMessageBytes(options_.process);
  service_ =
      std::make_unique<CoordinatorServiceImpl>(coordinator_.get(), limits);
  server().AddService(service_.get(), Service());
}

CoordinatorProcess::~CoordinatorProcess() {
  Close();
  coordinator_->Shutdown();
}

absl::Status CoordinatorProcess::Prepare() {
  if (!options_.state_directory.empty()) {
    RETURN_IF_ERROR(coordinator_->Restore(options_.state_directory));
  }
  coordinator_->WatchModelsFile();
  return absl::OkStatus();
}

absl::Status CoordinatorProcess::Serve() {
  server().SetReady(true);
  if (options_.address_file.empty()) return absl::OkStatus();
  return WriteFileAtomically(options_.address_file,
                             absl::StrCat(AdvertisedAddress(), "\n"));
}

void CoordinatorProcess::Finish(std::chrono::milliseconds grace) {
  coordinator_->Drain(absl::FromChrono(grace));
}

absl::string_view CoordinatorProcess::Service() {
  return v1::CoordinatorService::service_full_name();
}

int RunCoordinator(const std::vector<std::string>& arguments) {
  CoordinatorFlags values;
  Flags flags = DeclareFlags(&values);
  const auto check = [&values]() -> absl::Status {
    CoordinatorOptions& options = values.options.coordinator;
    ASSIGN_OR_RETURN(options.reduce, ReduceWayFromName(values.reduce));
    for (const absl::Duration limit :
         {options.command_timeout, options.load_timeout}) {
      if (limit >= absl::Seconds(1)) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "--command_timeout, --load_timeout: expected at least 1s, got ",
          absl::FormatDuration(limit)));
    }
    for (const std::string& model : values.models) {
      const auto request = ParseModelRequest(model);
      if (!request.ok()) return Annotate(request.status(), "--model");
      options.models.push_back(*request);
    }
    return absl::OkStatus();
  };
  return RunProcess<CoordinatorProcess>(flags, values.options, "coordinator",
                                        arguments, check);
}

}  // namespace gshard
