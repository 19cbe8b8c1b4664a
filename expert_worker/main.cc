// gshard_expert_worker: holds experts, and runs and trains them.

#include <string>
#include <vector>

#include "expert_worker/expert_worker_process.h"
#include "services/base/status_macros.h"
#include "services/cluster/failure_domains.h"
#include "services/cuda/ops/open_device.h"
#include "services/ops/matmul.h"
#include "services/rpc/process/process_main.h"

int main(int argc, char** argv) {
  gshard::InitCompute();
  gshard::ExpertWorkerOptions options;
  gshard::Flags flags("gshard_expert_worker",
                      "Holds experts of the models that a coordinator loads "
                      "and trains, and runs them for routers.");
  gshard::AddExpertWorkerFlags(flags, &options);
  flags.Example(
      "gshard_expert_worker --coordinator=localhost:7000 "
      "--listen=127.0.0.1:7002");
  return gshard::RunProcess<gshard::ExpertWorkerProcess>(
      flags, options, "expert_worker",
      std::vector<std::string>(argv + 1, argv + argc), [&]() -> absl::Status {
        RETURN_IF_ERROR(gshard::ValidateFailureDomain(options.failure_domain));
        ASSIGN_OR_RETURN(options.device,
                         gshard::OpenDevice(options.device_name));
        return absl::OkStatus();
      });
}
