// gshard_expert_worker: holds experts, and runs and trains them.

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "expert_worker/expert_worker_process.h"
#include "services/base/log.h"
#include "services/config/flags.h"
#include "services/rpc/signal_watcher.h"

namespace gshard {
namespace {

int Main(const std::vector<std::string>& arguments) {
  ExpertWorkerOptions options;
  Flags flags("gshard_expert_worker",
              "Holds experts of the models that a coordinator loads and "
              "trains, and runs them for routers.");
  AddExpertWorkerFlags(flags, &options);
  flags.Example(
      "gshard_expert_worker --coordinator=localhost:7000 "
      "--listen=127.0.0.1:7002");
  const absl::StatusOr<Flags::Result> parsed = flags.Parse(arguments);
  if (!parsed.ok()) {
    std::fprintf(stderr, "%s\n",
                 std::string(parsed.status().message()).c_str());
    return 2;
  }
  if (parsed->help) {
    std::fputs(flags.Help().c_str(), stdout);
    return 0;
  }
  ApplyLogLevel(options.process);
  SetLogField({"role", "expert_worker"});

  ExpertWorkerProcess process(options);
  const std::chrono::seconds grace(options.process.drain_seconds);
  SignalWatcher signals([&](int) { process.Drain(grace); });
  absl::Status status = process.Start();
  if (status.ok()) status = process.Wait();
  if (status.ok()) return 0;
  LogError("expert worker ends", {{"status", status}});
  return 1;
}

}  // namespace
}  // namespace gshard

int main(int argc, char** argv) {
  return gshard::Main(std::vector<std::string>(argv + 1, argv + argc));
}
