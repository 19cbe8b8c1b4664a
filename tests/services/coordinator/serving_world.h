// A cluster of fake members as the functions of serving_diff.h see it, with
// what a coordinator does between calls of them. Single-threaded and without
// time: replies, pauses and heartbeats happen when a test says so.

#ifndef TESTS_SERVICES_COORDINATOR_SERVING_WORLD_H_
#define TESTS_SERVICES_COORDINATOR_SERVING_WORLD_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "services/coordinator/serving/serving_diff.h"

namespace gshard {

class ServingWorld {
 public:
  // The state of a process, which outlives coordinators.
  struct Process {
    Member member;
    std::set<std::string> sessions;
    std::map<std::string, v1::Placement> placements;  // of routers
    std::set<std::string> standbys;                   // likewise
    bool leaving = false;                             // said at each Look()
    std::set<int64_t> incarnations = {};  // as a member; calls reach all
    bool Answers(const std::string& session) const {
      return sessions.contains(session) && !standbys.contains(session);
    }
  };

  void AddWorker(const std::string& name, int64_t capacity_bytes = 0,
                 const std::string& failure_domain = "") {
    Add(name, MemberRole::kExpertWorker, capacity_bytes, failure_domain);
  }
  void AddRouter(const std::string& name) { Add(name, MemberRole::kRouter, 0); }
  void Lose(const std::string& name);
  // The coordinator loses a process that goes on, and is called by routers.
  void CutOff(const std::string& name);
  void Rejoin(const std::string& name);
  bool IsCutOff(const std::string& name) const;
  // A worker that asks to leave is gone once it may; a router that does stays
  // until Lose().
  void AskToLeave(const std::string& name);

  // Wants "name@version" from now on, with experts of one byte each.
  ServedModel& Want(const std::string& session, int32_t experts,
                    int32_t replicas = 1, uint64_t content = 77);
  ServedModel& model(const std::string& session) {
    return desired.models.at(session);
  }

  // Decides once and sends the resulting commands, as "w0 load m@1 {0 1}", "r
  // load m@1 {w0: 0 1}", "r tell m@1 {w0: 0 1}", "w0 unload m@1 {0 1}"; a
  // standby has "standby" at the end. Models that fail or are replaced end, and
  // workers that asked to leave and may are gone.
  std::vector<std::string> Decide();
  // All pending commands, in order.
  std::vector<std::string> UnderWay() const;
  // Whether the pending command is a release.
  bool IsRelease(const std::string& member, const std::string& session) const;
  // The member executes its pending command, unless `status` is an error.
  void Answer(const std::string& member, const std::string& session,
              const absl::Status& status = absl::OkStatus());
  // Decides and executes everything sent until no command is sent.
  std::vector<std::string> Settle();
  // Ends all pauses, and the wait of models for their workers.
  void EndPauses();
  // Takes a heartbeat of every member.
  void Look();
  // Replaces the coordinator by one that knows only what earlier ones stored.
  void Restart();

  // The experts that routers may call, as "w0: 0 1, w1: 2".
  static std::string Text(const v1::Placement& placement);

  std::map<std::string, Process> processes;  // by name
  ObservedMembers members;
  DesiredModels desired;
  std::map<std::string, absl::Status> ended;  // by session
  std::vector<std::string> log;               // of what was sent and answered
  // Releases of sessions that are called or that answer for a name, and workers
  // let go with sessions that are called, by routers that were members then.
  std::vector<std::string> violations;

 private:
  void Add(const std::string& name, MemberRole role, int64_t capacity_bytes,
           const std::string& failure_domain = "");
  // Gives a process an incarnation as a member.
  void Join(Process* process);
  void LetGo();
  // Takes a heartbeat of a process.
  void Hear(const Process& process);
  // Whether the router calls a session of the worker.
  bool IsCalled(const Process& router, const Process& worker) const;
  std::string Text(const SessionCommand& command) const;
  absl::Status Do(Process& process, const SessionCommand& command);
  // The pending command of a member for a session, or for a bundle of it.
  std::vector<SessionCommand>::const_iterator FindUnderWay(
      const std::string& member, const std::string& session) const;
  void CheckRelease(const Process& process, const std::string& session);

  int64_t last_incarnation_ = 0;
  int64_t last_version_ = 0;
  int64_t last_number_ = 0;
  std::map<std::string, std::vector<int32_t>> bundles_;  // by session
  std::vector<SessionCommand> under_way_;
  std::set<std::string> late_;  // released from before a member was back
};

}  // namespace gshard

#endif  // TESTS_SERVICES_COORDINATOR_SERVING_WORLD_H_
