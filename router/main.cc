// gshard_router: translates, and runs the dense side of training.

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "router/router_process.h"
#include "services/base/log.h"
#include "services/config/flags.h"
#include "services/rpc/signal_watcher.h"

namespace gshard {
namespace {

int Main(const std::vector<std::string>& arguments) {
  RouterOptions options;
  Flags flags("gshard_router",
              "Translates with the models that a coordinator loads, and runs "
              "the dense side of its training jobs.");
  AddRouterFlags(flags, &options);
  flags.Example(
      "gshard_router --coordinator=localhost:7000 "
      "--listen=127.0.0.1:7001");
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
  SetLogField({"role", "router"});

  RouterProcess process(options);
  const std::chrono::seconds grace(options.process.drain_seconds);
  SignalWatcher signals([&](int) { process.Drain(grace); });
  absl::Status status = process.Start();
  if (status.ok()) status = process.Wait();
  if (status.ok()) return 0;
  LogError("router ends", {{"status", status}});
  return 1;
}

}  // namespace
}  // namespace gshard

int main(int argc, char** argv) {
  return gshard::Main(std::vector<std::string>(argv + 1, argv + argc));
}
