// The common part of main() of all server processes.

#ifndef SERVICES_RPC_PROCESS_PROCESS_MAIN_H_
#define SERVICES_RPC_PROCESS_PROCESS_MAIN_H_

#include <sysexits.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "services/base/log.h"
#include "services/base/machine_limits.h"
#include "services/base/parallel.h"
#include "services/base/standard_streams.h"
#include "services/base/status_macros.h"
#include "services/config/flags.h"
#include "services/config/process_options.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/client/probe.h"
#include "services/rpc/process/signal_watcher.h"
#include "services/storage/object_client.h"

namespace gshard {

// Parses `arguments` by `flags`, which write to `options`, and runs a Process
// until SIGTERM has drained it. Returns the exit code: 0, with --exit_as_killed
// the signal's number and 128; 1 if the process could not start or was refused;
// 75 if Start() failed with ABORTED, as another process has what it needs, and
// may not for long; 2 for invalid flags, including those that make Start() fail
// with INVALID_ARGUMENT, such as addresses and files of callers. With --probe
// no process is run; the exit code is 0 if the probed process has the requested
// state, else 1.
//
// `check` runs after the flags are parsed and may still write to `options`; its
// error counts as an invalid flag. Options has a member `process` of type
// ProcessOptions. Process is constructed from Options and has Start(),
// Drain(grace, delay), Wait() and Service(), which returns the full name of its
// main service; RouterProcess is an example.
template <typename Process, typename Options>
int RunProcess(Flags& flags, const Options& options, const char* role,
               const std::vector<std::string>& arguments,
               const std::function<absl::Status()>& check = nullptr) {
  TakeClosedStreams();
  if (const auto exit_code = flags.ParseOrExit(arguments)) return *exit_code;
  absl::Status status = check ? check() : absl::OkStatus();
  if (status.ok() && !options.process.coordinator.empty()) {
    status =
        Annotate(ValidateAddress(options.process.coordinator), "--coordinator");
  }
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
    return 2;
  }
  if (options.process.probe != "no") {
    SetLogThreshold(LogSeverity::kWarning);  // print one line of result only
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
  for (const auto& [variable, nearest] : flags.Misspelt(environ)) {
    LogWarning("an environment variable is not read; is it misspelt?",
               {{"variable", variable}, {"nearest", nearest}});
  }
  KeepGrpcRunning();
  const int64_t threads = options.process.threads;
  SetComputeThreads(threads > 0 ? static_cast<int>(threads) : CpuLimit());

  Process process(options);
  const std::chrono::seconds grace(options.process.drain_seconds);
  const auto delay = absl::ToChronoMilliseconds(options.process.drain_delay);
  int signal = 0;  // before Drain(), which Wait() waits for
  SignalWatcher signals([&](int number) {
    signal = number;
    process.Drain(grace, delay);
  });
  status = process.Start();
  const int failed = absl::IsInvalidArgument(status) ? 2
                     : absl::IsAborted(status)       ? EX_TEMPFAIL
                                                     : 1;
  if (status.ok()) status = process.Wait();
  if (status.ok()) return options.process.exit_as_killed ? 128 + signal : 0;
  LogError("the process ends", {{"status", status}});
  return failed;
}

}  // namespace gshard

#endif  // SERVICES_RPC_PROCESS_PROCESS_MAIN_H_
