// ProcessSystem: a coordinator, routers and expert workers in processes of
// their own, over unix sockets in a temporary directory.

#ifndef TESTS_BENCHMARK_PROCESS_SYSTEM_H_
#define TESTS_BENCHMARK_PROCESS_SYSTEM_H_

#include <unistd.h>

#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/child_process.h"
#include "proto/gshard/v1/coordinator.grpc.pb.h"
#include "services/base/check.h"
#include "services/config/training_job_proto.h"
#include "services/rpc/client/channel.h"
#include "tests/integration/temporary_directory.h"

namespace gshard {

// CPU time of a process so far, in seconds.
inline double CpuSeconds(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  // Fields 14 and 15, counted after the process name, which may hold anything.
  const std::vector<std::string> fields =
      absl::StrSplit(text.substr(text.rfind(')') + 2), ' ');
  return (std::stod(fields[11]) + std::stod(fields[12])) /
         static_cast<double>(::sysconf(_SC_CLK_TCK));
}

class ProcessSystem {
 public:
  using Flags = std::vector<std::string>;

  // Starts "coordinator", "router-0" and so on, "worker-0" and so on.
  ProcessSystem(int routers, int workers, const Flags& coordinator_flags,
                const Flags& member_flags) {
    Start("coordinator", "gshard_coordinator", coordinator_flags);
    Flags joining = member_flags;
    joining.push_back("--coordinator=" + Address("coordinator"));
    for (int r = 0; r < routers; ++r) {
      StartMember(absl::StrCat("router-", r), "gshard_router", joining);
    }
    for (int w = 0; w < workers; ++w) {
      StartMember(absl::StrCat("worker-", w), "gshard_expert_worker", joining);
    }
    const auto channel = CreateChannel(Address("coordinator"));
    CHECK(channel.ok());
    stub_ = v1::CoordinatorService::NewStub(*channel);
  }

  const std::string& directory() const { return directory_.path(); }
  std::string Address(const std::string& name) const {
    return absl::StrCat("unix:", directory(), "/", name);
  }
  pid_t pid(const std::string& name) const {
    return processes_.at(name)->pid();
  }
  v1::CoordinatorService::Stub& coordinator() { return *stub_; }

  // Waits for the coordinator; returns the job's id.
  std::string Submit(const TrainingJob& job) {
    v1::SubmitJobRequest request;
    *request.mutable_job() = TrainingJobToProto(job);
    v1::SubmitJobResponse response;
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    CHECK(stub_->SubmitJob(&context, request, &response).ok());
    return response.job();
  }

  // Of all processes so far.
  double CpuSeconds() const {
    double sum = 0.0;
    for (const auto& [name, process] : processes_) {
      sum += gshard::CpuSeconds(process->pid());
    }
    return sum;
  }

 private:
  void StartMember(const std::string& name, const std::string& program,
                   Flags flags) {
    flags.push_back("--name=" + name);
    Start(name, program, flags);
  }
  void Start(const std::string& name, const std::string& program,
             const Flags& flags) {
    Flags command = {absl::StrCat(GSHARD_PROGRAMS, "/", program),
                     "--listen=" + Address(name)};
    command.insert(command.end(), flags.begin(), flags.end());
    auto process = ChildProcess::Start(
        name, command, absl::StrCat(directory(), "/", name, ".log"));
    CHECK(process.ok());
    processes_[name] = *std::move(process);
  }

  const TemporaryDirectory directory_;
  std::map<std::string, std::unique_ptr<ChildProcess>> processes_;
  std::unique_ptr<v1::CoordinatorService::Stub> stub_;
};

}  // namespace gshard

#endif  // TESTS_BENCHMARK_PROCESS_SYSTEM_H_
