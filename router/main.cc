// gshard_router: translates, and runs the dense side of training.

#include <string>
#include <vector>

#include "router/router_process.h"
#include "services/base/status_macros.h"
#include "services/cuda/ops/open_device.h"
#include "services/ops/matmul.h"
#include "services/rpc/process/process_main.h"

int main(int argc, char** argv) {
  gshard::InitCompute();
  gshard::RouterOptions options;
  gshard::Flags flags("gshard_router",
                      "Translates with the models that a coordinator loads, "
                      "and runs the dense side of its training jobs.");
  gshard::AddRouterFlags(flags, &options);
  flags.Example(
      "gshard_router --coordinator=localhost:7000 "
      "--listen=127.0.0.1:7001");
  return gshard::RunProcess<gshard::RouterProcess>(
      flags, options, "router", std::vector<std::string>(argv + 1, argv + argc),
      [&]() -> absl::Status {
        ASSIGN_OR_RETURN(options.device,
                         gshard::OpenDevice(options.device_name));
        return absl::OkStatus();
      });
}
