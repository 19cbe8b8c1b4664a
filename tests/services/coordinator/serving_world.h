// A cluster of made-up members as the functions of serving_diff.h see it, with
// what a coordinator does between their calls. Single-threaded; there is no
// time: replies, pauses and heartbeats come when a test says so.

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
  // What a process has. It outlives coordinators.
  struct Process {
    Member member;
    std::set<std::string> sessions;
    std::map<std::string, v1::Placement> placements;  // of routers
    std::set<std::string> standbys;                   // likewise
    bool leaving = false;                             // it says so at each look
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
  // The worker says that it wants to leave, and is gone once it may.
  void AskToLeave(const std::string& name);

  // Wants "name@version" from now on, of experts of a byte each.
  ServedModel& Want(const std::string& session, int32_t experts,
                    int32_t replicas = 1, uint64_t content = 77);
  ServedModel& model(const std::string& session) {
    return desired.models.at(session);
  }

  // Decides once, and sends what is to be sent, as "w0 load m@1 {0 1}", "r load
  // m@1 {w0: 0 1}", "r tell m@1 {w0: 0 1}", "w0 unload m@1 {0 1}"; a standby
  // has "standby" behind it. Models that fail or are replaced end, and workers
  // go that want to leave and may.
  std::vector<std::string> Decide();
  // All that is under way, in order.
  std::vector<std::string> UnderWay() const;
  // A release is what is under way there.
  bool IsRelease(const std::string& member, const std::string& session) const;
  // The member does what it was told, unless it answers with an error: then it
  // has not done it.
  void Answer(const std::string& member, const std::string& session,
              const absl::Status& status = absl::OkStatus());
  // Decides, and all that is sent is done, until nothing is.
  std::vector<std::string> Settle();
  // Pauses are over.
  void EndPauses();
  // Heartbeats are looked at.
  void Look();
  // Another coordinator, which knows of earlier ones what they have kept.
  void Restart();

  // The experts that routers may call, as "w0: 0 1, w1: 2".
  static std::string Text(const v1::Placement& placement);

  std::map<std::string, Process> processes;  // by name
  ObservedMembers members;
  DesiredModels desired;
  std::map<std::string, absl::Status> ended;  // by session
  std::vector<std::string> log;               // of what was sent and answered
  // Releases of what is called, or of what answers for a name, and workers that
  // were let go with something that is called.
  std::vector<std::string> violations;

 private:
  void Add(const std::string& name, MemberRole role, int64_t capacity_bytes,
           const std::string& failure_domain = "");
  void LetGo();
  // A heartbeat.
  void Hear(const Process& process);
  // A router calls what the worker has.
  bool IsCalled(const Process& router, const Process& worker) const;
  std::string Text(const SessionCommand& command) const;
  absl::Status Do(Process& process, const SessionCommand& command);
  // That of a member about a session, or about a bundle of it.
  std::vector<SessionCommand>::const_iterator FindUnderWay(
      const std::string& member, const std::string& session) const;
  void CheckRelease(const Process& process, const std::string& session);

  int64_t last_incarnation_ = 0;
  int64_t last_version_ = 0;
  int64_t last_number_ = 0;
  std::map<std::string, std::vector<int32_t>> bundles_;  // by session
  std::vector<SessionCommand> under_way_;
};

}  // namespace gshard

#endif  // TESTS_SERVICES_COORDINATOR_SERVING_WORLD_H_
