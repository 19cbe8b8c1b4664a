// ServedModel: the desired state of a served model and the observed state of
// members. Plain data; serving_diff.h derives commands from the two.
//
// Workers hold experts in bundles: sessions of their own, loaded and released
// as a whole, whose names say what is in them. A member's session that has the
// name of what is to be loaded is never loaded twice, whoever asked for it.

#ifndef SERVICES_COORDINATOR_SERVING_SERVED_MODEL_H_
#define SERVICES_COORDINATOR_SERVING_SERVED_MODEL_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/gshard/v1/coordinator.pb.h"
#include "services/cluster/membership.h"
#include "services/cluster/replica_placement.h"
#include "services/coordinator/membership/members.h"
#include "services/coordinator/membership/session_plan.h"

namespace gshard {

// A session of a served model on a router, or one of its bundles on a worker.
// One command about it is under way at a time.
struct HeldSession {
  enum class State {
    kUnknown,  // but for what heartbeats, or an earlier coordinator, say of it
    kLoading,  // until the member says that it is loaded
    kReady,
    kTelling,  // router: ready, and being told a placement
    kReleasing,
    kWaiting,  // bundle: was UNAVAILABLE, but will be; kUnknown again in a
               // while
    kPaused,   // could not be loaded; kUnknown again in a while
    kLeftOut,  // router: it is of a release that runs other segments
  };
  State state = State::kUnknown;
  int64_t command = 0;           // the last one about it
  uint64_t content = 0;          // ServedModel::content; 0: not known
  int reports = 0;               // looks in a row at which heartbeats had it
  int refusals = 0;              // in a row
  std::vector<int32_t> experts;  // of a bundle, ascending; empty if not known
  int64_t version = 0;  // router: of the placement that it has, or is told
};

// A live member with its sessions.
struct ObservedMember {
  Member member;
  std::map<std::string, HeldSession> sessions;
  // Those of its last heartbeat.
  std::set<std::string> reported = {};

  // Experts are placed on it: a worker that does not want to leave.
  bool takes_experts() const {
    return member.info.role == MemberRole::kExpertWorker && !member.leaving;
  }
};
using ObservedMembers = std::map<MemberKey, ObservedMember>;

// The experts that workers are to have, each list ascending.
using ExpertAssignment = std::map<MemberKey, std::vector<int32_t>>;

// What is asked for.
struct ModelRequest {
  std::string name;
  std::string version;  // empty: the checkpoint's step
  std::string checkpoint_directory;
  int32_t replicas = 0;  // 0: the default
};

// One version of a model that is wanted.
struct ServedModel {
  enum class Phase {
    kLoading,
    kLoaded,     // all routers that can have it do
    kAnswering,  // they have been told that its name stands for it
  };

  std::string session;   // "name@version"
  ModelRequest request;  // as it was found then
  int64_t number = 0;    // later requests have higher ones
  ServingPlan plan;
  uint64_t content = 0;      // says which segments and checkpoint; not 0
  int32_t experts = 0;       // E; 0: it is dense
  int32_t replicas = 1;      // workers that are to hold each expert
  std::vector<double> load;  // rows a second of each expert, [E]; or empty
  bool standby = false;  // its name stands for another version until kLoaded
  bool adopted = false;  // an earlier coordinator had it served

  Phase phase = Phase::kLoading;
  absl::Status failure;  // not OK: it is given up
  ExpertAssignment assignment;
  // What routers are to know, with each change of `standby`, too, under a new
  // version. Version 0: what an earlier coordinator told them.
  v1::Placement placement;
  // Of that, what workers had that have not been there yet.
  v1::Placement away;
  // The last complete locations of experts, by the names of the workers then: a
  // restarted worker gets back its experts.
  std::map<std::vector<std::string>, ExpertLists> homes;

  // Routers may be answering with it: no failure removes it.
  bool may_serve() const { return adopted || phase != Phase::kLoading; }
};

struct DesiredModels {
  std::map<std::string, ServedModel> models;  // by session
  // Names that are to be served as soon as that can be: what members have of
  // them stays.
  std::set<std::string> awaited;
};

// "name@version" of a session of a served model: a router's, or a bundle.
inline std::string ModelOf(const std::string& session) {
  return session.substr(0, session.find('#'));
}
// "name".
inline std::string NameOf(const std::string& session) {
  return session.substr(0, session.find('@'));
}

// Whether a member's session is one of the model, not of another that had its
// name and version.
inline bool IsOfModel(const std::string& session, const HeldSession& held,
                      const ServedModel& model) {
  return ModelOf(session) == model.session && held.content == model.content;
}
// Whether routers may call the bundle.
bool IsPlaced(const ServedModel& model, const std::string& worker,
              const std::string& session);
// Of a bundle: it may be counted on.
inline bool IsLoadedOrLoading(const HeldSession& held) {
  return held.state != HeldSession::State::kPaused &&
         held.state != HeldSession::State::kReleasing;
}

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_SERVING_SERVED_MODEL_H_
