#include "tests/fault/process_cluster.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/status_macros.h"
#include "services/config/training_job_proto.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/wire/status.h"
#include "tests/integration/cluster.h"
#include "tests/integration/names_job.h"

namespace gshard {
namespace {

const char* const kMembers[] = {"router-0", "router-1", "worker-0", "worker-1",
                                "worker-2"};

std::string ProgramOf(const std::string& name) {
  if (name == "coordinator") return "gshard_coordinator";
  return absl::StartsWith(name, "router") ? "gshard_router"
                                          : "gshard_expert_worker";
}

}  // namespace

ProcessCluster::ProcessCluster(int64_t lease_ms, Wires wires)
    : lease_ms_(lease_ms) {
  for (const std::string member : kMembers) {
    if (wires == Wires::kSockets) break;
    links_[member] = std::make_unique<SilentLink>(Path(member + "-link"),
                                                  Path("coordinator"));
    if (!absl::StartsWith(member, "worker")) continue;
    links_[member + "-calls"] =
        std::make_unique<SilentLink>(Path(member + "-calls"), Path(member));
  }
  Start("coordinator");
  for (const char* member : kMembers) Start(member);
  coordinator_ = v1::CoordinatorService::NewStub(
      *CreateChannel("unix:" + Path("coordinator")));
  for (const char* member : kMembers) EXPECT_TRUE(AwaitMember(member, true));
}

ProcessCluster::~ProcessCluster() {
  for (const std::string& name : std::set<std::string>(paused_)) GoOn(name);
  processes_.clear();
}

void ProcessCluster::SetClock(int64_t seconds) {
  std::ofstream(Path("shift.new")) << seconds;
  std::filesystem::rename(Path("shift.new"), Path("shift"));
}

void ProcessCluster::Start(const std::string& name) {
  std::vector<std::string> argv = {
      absl::StrCat(GSHARD_PROGRAMS, "/", ProgramOf(name)),
      absl::StrCat("--listen=unix:", Path(name)),
      absl::StrCat("--lease_ms=", lease_ms_)};
  if (name == "coordinator") {
    // The sanitizer runtimes insist on being the first library.
    argv.insert(argv.begin(),
                {"/usr/bin/env", "LD_PRELOAD=" GSHARD_SHIFTED_CLOCK,
                 "GSHARD_CLOCK_SHIFT_FILE=" + Path("shift"),
                 "ASAN_OPTIONS=verify_asan_link_order=0"});
    argv.push_back("--state_directory=" + Path("state"));
  } else {
    argv.push_back("--name=" + name);
    const bool linked = links_.count(name) > 0;
    argv.push_back(absl::StrCat("--coordinator=unix:",
                                Path(linked ? name + "-link" : "coordinator")));
  }
  if (links_.count(name + "-calls") > 0) {
    argv.push_back(absl::StrCat("--advertise=unix:", Path(name + "-calls")));
    // Shared memory would bypass the link, which stands in for a network.
    argv.push_back("--shared_memory_mib=0");
  }
  auto child = ChildProcess::Start(name, argv, Path(name + ".log"));
  CHECK(child.ok());
  processes_[name] = *std::move(child);
}

void ProcessCluster::Kill(const std::string& name) { processes_.erase(name); }
void ProcessCluster::Restart(const std::string& name) { Start(name); }

void ProcessCluster::StopAll(bool members_first) {
  for (const bool members : {members_first, !members_first}) {
    for (const auto& [name, process] : processes_) {
      if ((name != "coordinator") == members) process->Terminate();
    }
  }
  for (const auto& [name, process] : processes_) {
    EXPECT_TRUE(process->WaitOrKill(std::chrono::minutes(1))) << name;
    EXPECT_TRUE(process->Succeeded()) << name;
  }
  processes_.clear();
}

void ProcessCluster::StartAll() {
  Start("coordinator");
  for (const char* member : kMembers) Start(member);
}

void ProcessCluster::Pause(const std::string& name) {
  CHECK(kill(processes_.at(name)->pid(), SIGSTOP) == 0);
  paused_.insert(name);
}

void ProcessCluster::GoOn(const std::string& name) {
  CHECK(kill(processes_.at(name)->pid(), SIGCONT) == 0);
  paused_.erase(name);
}

bool ProcessCluster::AwaitStep(int64_t step) {
  return Eventually([&] {
    const auto info = Info("names");
    return info.ok() && info->progress().step() >= step;
  });
}

bool ProcessCluster::AwaitMember(const std::string& name, bool there) {
  return Eventually([&] {
    const auto state = Describe();
    if (!state.ok()) return false;
    bool found = false;
    for (const v1::Member& member : state->members()) {
      found |= member.name() == name;
    }
    return found == there;
  });
}

bool ProcessCluster::AwaitLog(const std::string& name,
                              const std::string& text) {
  return Eventually([&] {
    std::ostringstream log;
    log << std::ifstream(Path(name + ".log")).rdbuf();
    return absl::StrContains(log.str(), text);
  });
}

bool ProcessCluster::AwaitHeartbeat(const std::string& name, bool idle) {
  int64_t silent_ms = -1;  // of the previous Describe()
  return Eventually([&] {
    const auto state = Describe();
    if (!state.ok()) return false;
    for (const v1::Member& member : state->members()) {
      if (member.name() != name) continue;
      const bool heard = member.silent_ms() < silent_ms;
      silent_ms = member.silent_ms();
      return heard && (!idle || member.heartbeat().in_flight() == 0);
    }
    return false;
  });
}

TrainingJob ProcessCluster::Job() const {
  TrainingJob job = NamesJob(Path("checkpoints"));
  job.data.train_path = std::filesystem::absolute(job.data.train_path);
  job.steps = 24;
  job.checkpoint.every_steps = 4;
  job.min_routers = 2;
  job.min_workers = 3;
  job.recovery.replacement_wait_ms = 100;
  job.recovery.max_recoveries = 20;
  return job;
}

absl::Status ProcessCluster::Submit(const TrainingJob& job) {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::SubmitJobRequest request;
  *request.mutable_job() = TrainingJobToProto(job);
  v1::SubmitJobResponse response;
  return FromGrpcStatus(coordinator_->SubmitJob(&context, request, &response));
}

absl::StatusOr<v1::JobProgress> ProcessCluster::AwaitEnd(
    const std::string& job) {
  v1::WatchJobRequest request;
  request.set_job(job);
  absl::Status end = absl::UnavailableError("not watched yet");
  v1::JobProgress line;
  while (absl::IsUnavailable(end) || absl::IsCancelled(end)) {
    grpc::ClientContext context;
    SetDeadline(context, std::chrono::minutes(2));
    const auto stream = coordinator_->WatchJob(&context, request);
    while (stream->Read(&line)) {
    }
    end = FromGrpcStatus(stream->Finish());
  }
  RETURN_IF_ERROR(end);
  return line;
}

absl::StatusOr<v1::JobInfo> ProcessCluster::Info(const std::string& job) {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::ListJobsRequest request;
  request.set_job(job);
  request.set_include_history(true);
  v1::ListJobsResponse response;
  RETURN_IF_ERROR(
      FromGrpcStatus(coordinator_->ListJobs(&context, request, &response)));
  return response.jobs(0);
}

absl::StatusOr<v1::DescribeResponse> ProcessCluster::Describe() {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::DescribeResponse response;
  RETURN_IF_ERROR(
      FromGrpcStatus(coordinator_->Describe(&context, {}, &response)));
  return response;
}

}  // namespace gshard
