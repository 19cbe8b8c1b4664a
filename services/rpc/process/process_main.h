// What the main() of all server processes have in common.

#ifndef SERVICES_RPC_PROCESS_PROCESS_MAIN_H_
#define SERVICES_RPC_PROCESS_PROCESS_MAIN_H_

#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "services/base/log.h"
#include "services/base/machine_limits.h"
#include "services/base/parallel.h"
#include "services/config/flags.h"
#include "services/config/process_options.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/client/probe.h"
#include "services/rpc/process/signal_watcher.h"
#include "services/storage/object_client.h"

namespace gshard {

// Parses `arguments` by `flags`, which write to `options`, and runs a Process
// until SIGTERM has drained it. Returns the exit code: 0, 1 if the process
// could not start or was refused, 2 for wrong flags, which are also what makes
// Start() fail with INVALID_ARGUMENT: addresses, files of callers. With --probe
// it runs none and returns 0 if the one that it asks is as wanted, else 1.
//
// `check` runs once flags are parsed and may still write to `options`; its
// error is that of a wrong flag. Options has a member `process` of type
// ProcessOptions. Process is made of Options and has Start(),
// Drain(grace, delay), Wait() and Service(), the name of the service that it is
// there for, as RouterProcess.
template <typename Process, typename Options>
int RunProcess(Flags& flags, const Options& options, const char* role,
               const std::vector<std::string>& arguments,
               const std::function<absl::Status()>& check = nullptr) {
  if (const auto exit_code = flags.ParseOrExit(arguments)) return *exit_code;
  absl::Status status = check ? check() : absl::OkStatus();
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
    return 2;
  }
  if (options.process.probe != "no") {
    SetLogThreshold(LogSeverity::kWarning);  // one line of result is enough
    status = Probe(options.process, Process::Service());
    if (status.ok()) return 0;
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  ApplyLogLevel(options.process);
  ConfigureObjectStore({.endpoint = options.process.s3_endpoint,
                        .region = options.process.s3_region,
                        .insecure = options.process.security.insecure});
  SetLogField({"role", role});
  KeepGrpcRunning();
  const int64_t threads = options.process.threads;
  SetComputeThreads(threads > 0 ? static_cast<int>(threads) : CpuLimit());

  Process process(options);
  const std::chrono::seconds grace(options.process.drain_seconds);
  const auto delay = absl::ToChronoMilliseconds(options.process.drain_delay);
  SignalWatcher signals([&](int) { process.Drain(grace, delay); });
  status = process.Start();
  const bool wrong_flags = absl::IsInvalidArgument(status);
  if (status.ok()) status = process.Wait();
  if (status.ok()) return 0;
  LogError("the process ends", {{"status", status}});
  return wrong_flags ? 2 : 1;
}

}  // namespace gshard

#endif  // SERVICES_RPC_PROCESS_PROCESS_MAIN_H_
