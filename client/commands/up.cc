// gshard up: a whole system on this machine.

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <future>
#include <iterator>
#include <ostream>
#include <set>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/commands.h"
#include "client/coordinator_client.h"
#include "client/local_system.h"
#include "client/model_files.h"
#include "client/system_layout.h"
#include "client/system_wait.h"
#include "services/base/log_style.h"
#include "services/base/mutex.h"
#include "services/base/status_macros.h"
#include "services/base/table.h"
#include "services/config/model_request.h"
#include "services/config/process_options.h"
#include "services/cuda/ops/open_device.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/process/signal_watcher.h"

namespace gshard {
namespace {

constexpr std::chrono::milliseconds kCheckInterval{200};
constexpr std::chrono::minutes kLoadTimeout{10};

// Locks the directory for one `gshard up` during its lifetime.
class DirectoryLock {
 public:
  // Creates the directory if it is missing. Errors: AlreadyExists if another
  // process holds it.
  static absl::StatusOr<std::unique_ptr<DirectoryLock>> Take(
      const std::string& directory) {
    std::error_code error;
    std::filesystem::create_directories(directory, error);
    if (error) {
      return absl::FailedPreconditionError(
          absl::StrCat(directory, ": ", error.message()));
    }
    const std::string path = directory + "/lock";
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, ": ", strerror(errno)));
    }
    std::unique_ptr<DirectoryLock> lock(new DirectoryLock(file));
    if (flock(file, LOCK_EX | LOCK_NB) != 0) {
      return absl::AlreadyExistsError(absl::StrCat(
          "another `gshard up` uses ", directory, "; see --directory"));
    }
    return lock;
  }
  ~DirectoryLock() { close(file_); }
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  explicit DirectoryLock(int file) : file_(file) {}
  const int file_;
};

// Set by a signal.
class StopRequest {
 public:
  void Set() {
    MutexLock lock(mutex_);
    set_ = true;
    changed_.NotifyAll();
  }
  bool WaitFor(std::chrono::milliseconds time) {
    MutexLock lock(mutex_);
    return changed_.WaitFor(
        lock, time,
        [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return set_; });
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool set_ ABSL_GUARDED_BY(mutex_) = false;
};

std::string MemberTable(const LocalSystemOptions& options) {
  Table table({"member", "address", "metrics"});
  for (const LocalMember& member : LocalMembers(options)) {
    table.AddRow(
        {member.name, member.address,
         member.metrics_address.empty()
             ? "none; see --metrics_port_base"
             : absl::StrCat("http://", member.metrics_address, "/metrics")});
  }
  return table.ToText();
}

// Serves a model. Errors, soon: Cancelled if told to stop; that of
// system.Check().
absl::StatusOr<std::string> Load(LocalSystem& system,
                                 CoordinatorClient& coordinator,
                                 const v1::LoadModelRequest& model,
                                 StopRequest& stop) {
  std::future<absl::StatusOr<std::string>> loading =
      std::async(std::launch::async,
                 [&] { return coordinator.LoadModel(model, kLoadTimeout); });
  while (loading.wait_for(kCheckInterval) != std::future_status::ready) {
    absl::Status status = system.Check();
    if (stop.WaitFor(std::chrono::milliseconds(0))) {
      status = absl::CancelledError("stopped before all models were loaded");
    }
    if (status.ok()) continue;
    coordinator.Interrupt();
    return status;
  }
  absl::StatusOr<std::string> session = loading.get();
  // The death of a process explains more than the failed call.
  if (!session.ok()) RETURN_IF_ERROR(system.Check());
  return session;
}

// Starts the system and serves the models.
absl::Status MakeReady(LocalSystem& system, CoordinatorClient& coordinator,
                       const LocalSystemOptions& options,
                       const std::vector<v1::LoadModelRequest>& models,
                       std::chrono::milliseconds timeout, StopRequest& stop,
                       std::ostream& out) {
  RETURN_IF_ERROR(system.Start());
  RETURN_IF_ERROR(WaitForSystem(
      coordinator, {.routers = options.routers, .workers = options.workers},
      timeout, [&]() -> absl::Status {
        if (stop.WaitFor(std::chrono::milliseconds(0))) {
          return absl::CancelledError("stopped before all members had joined");
        }
        return system.Check();
      }));
  for (const v1::LoadModelRequest& model : models) {
    ASSIGN_OR_RETURN(const std::string session,
                     Load(system, coordinator, model, stop));
    out << "serving " << session << " from " << model.checkpoint_directory()
        << std::endl;
  }
  out << "ready: 1 coordinator, " << options.routers << " router"
      << (options.routers == 1 ? "" : "s") << ", " << options.workers
      << " expert worker" << (options.workers == 1 ? "" : "s") << std::endl;
  return absl::OkStatus();
}

// Folder of this program.
std::string ProgramDirectory() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error)
      .parent_path()
      .string();
}

}  // namespace

absl::Status UpCommand(Arguments arguments, Console& console) {
  SystemFlags system_flags(console);
  LocalSystemOptions options;
  bool processes = false;
  std::vector<std::string> models, devices;
  absl::Duration timeout = absl::Seconds(60);
  Flags flags("gshard up",
              "Runs a coordinator, routers and expert workers on this machine, "
              "in this one process or, with --processes, as separate ones, "
              "until Ctrl-C or SIGTERM. Says \"ready\" when all have joined; "
              "other gshard commands then find them by themselves.");
  flags.Bool("processes", &processes,
             "run each member as a process of its own, with its log in "
             "DIR/logs; if one dies, stop the others and fail");
  flags.Integer("routers", &options.routers, 1, 256, "routers");
  flags.Integer("workers", &options.workers, 1, 2048, "expert workers");
  flags.Choice(
      "reduce", &options.reduce, {"coordinator", "gloo", "nccl"},
      "who sums the dense gradients of training jobs: the coordinator, "
      "or the routers among themselves; the result is the same, but for last "
      "bits on GPUs");
  flags.List("models", &models, "NAME=CHECKPOINT", "models to serve");
  flags.Integer("metrics_port_base", &options.metrics_port_base, 0, 60000,
                "first of the ports on 127.0.0.1 with Prometheus metrics: the "
                "coordinator's, then each router's and worker's; 0: none");
  flags.Text("state_directory", &options.state_directory, "DIR",
             "keeps jobs and served models, so that the next `gshard up` goes "
             "on with them; left out: they are forgotten");
  flags.Integer("threads", &options.threads, 0, 1024,
                "threads that compute a kernel together; with --processes, of "
                "each; 0: the CPUs, shared among processes");
  flags.List("device", &devices, "cpu|cuda:N",
             "what computes: the CPU, or GPUs that routers, and workers, take "
             "in turns; left out: the CPU");
  flags.Integer("drain_seconds", &options.drain_seconds, 0, 86400,
                "time for calls in progress when stopping");
  flags.Choice("log_level", &options.log_level,
               {"debug", "info", "warning", "error"},
               "least severity of log lines");
  AddTraceFlags(flags, &options.trace);
  AddStoreFlags(flags, &options.store, /*has_insecure=*/false);
  flags.Bool("enable_debug_calls", &options.enable_debug_calls,
             "let routers answer `gshard explain`");
  flags.Text("program_directory", &options.program_directory, "DIR",
             "folder of the programs that --processes runs; left out: that of "
             "gshard");
  flags.Duration("timeout", &timeout, "time for all members to join");
  system_flags.DeclareDirectory(flags);
  flags.Example("gshard up");
  flags.Example(
      "gshard up --processes --routers 2 --workers 4 --models "
      "demo=demo/checkpoints");
  ASSIGN_OR_RETURN(const auto parsed, ParseFlags(flags, arguments, console));
  if (!parsed.has_value()) return absl::OkStatus();
  ConfigureObjectStore(options.store);

  std::vector<v1::LoadModelRequest> requests;
  for (const std::string& text : models) {
    const absl::StatusOr<ModelRequest> model = ParseModelRequest(text);
    if (!model.ok()) return UsageError(Annotate(model.status(), "--models"));
    v1::LoadModelRequest request;
    request.set_name(model->name);
    ASSIGN_OR_RETURN(*request.mutable_checkpoint_directory(),
                     FindCheckpoint(model->checkpoint));
    requests.push_back(request);
  }
  options.directory = system_flags.Layout().directory();
  options.state_directory = AbsolutePath(options.state_directory);
  if (options.program_directory.empty()) {
    options.program_directory = ProgramDirectory();
  }
  if (!devices.empty()) options.device_names = devices;
  if (options.reduce == "nccl" &&
      std::ssize(std::set<std::string>(devices.begin(), devices.end())) <
          options.routers) {
    return UsageError(absl::StrCat(
        "--reduce=nccl: expected --device with a GPU for each of the ",
        options.routers, " routers, got '", absl::StrJoin(devices, ","), "'"));
  }
  if (!processes) {
    options.devices.clear();
    for (const std::string& name : options.device_names) {
      ASSIGN_OR_RETURN(options.devices.emplace_back(), OpenDevice(name));
    }
  }
  for (const LocalMember& member : LocalMembers(options)) {
    RETURN_IF_ERROR(ValidateAddress(member.address));
  }
  ASSIGN_OR_RETURN(const auto lock, DirectoryLock::Take(options.directory));
  ASSIGN_OR_RETURN(
      const auto coordinator,
      CoordinatorClient::Create(system_flags.Layout().Address("coordinator")));

  StopRequest stop;
  SignalWatcher signals([&](int) { stop.Set(); });
  ProcessOptions process;
  process.log_level = options.log_level;
  ApplyLogLevel(process);
  // Otherwise members have their own logs.
  if (!processes) SetLogStyle(LogStyle::kJson);
  *console.out << MemberTable(options) << std::flush;
  const std::unique_ptr<LocalSystem> system =
      processes ? MakeProcessSystem(options) : MakeEmbeddedSystem(options);
  absl::Status status =
      MakeReady(*system, *coordinator, options, requests,
                absl::ToChronoMilliseconds(timeout), stop, *console.out);
  // A stop request while members start is no failure, either.
  if (absl::IsCancelled(status) && stop.WaitFor(std::chrono::seconds(0))) {
    status = absl::OkStatus();
  }
  while (status.ok() && !stop.WaitFor(kCheckInterval)) {
    status = system->Check();
  }
  *console.out << "stopping" << std::endl;
  const bool orderly = system->Stop();
  if (status.ok() && !orderly) {
    status = absl::DeadlineExceededError(
        "not every process stopped by itself; see the logs");
  }
  *console.out << "stopped" << std::endl;
  return status;
}

}  // namespace gshard
