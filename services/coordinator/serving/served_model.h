// ServedModel: the desired state of a served model and the observed state of
// members. Plain data; serving_diff.h derives commands from the two.
//
// Workers hold experts in bundles: separate sessions, loaded and released as a
// whole, named by their content. A session whose name a member already has is
// never loaded twice, whoever requested it.

#ifndef SERVICES_COORDINATOR_SERVING_SERVED_MODEL_H_
#define SERVICES_COORDINATOR_SERVING_SERVED_MODEL_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/gshard/v1/coordinator.pb.h"
#include "services/cluster/membership.h"
#include "services/cluster/replica_placement.h"
#include "services/config/model_request.h"
#include "services/coordinator/membership/members.h"
#include "services/coordinator/membership/session_plan.h"

namespace gshard {

// A session of a served model on a router, or a bundle on a worker. At most one
// command for it is in flight.
struct HeldSession {
  enum class State {
    kUnknown,  // known only from heartbeats or an earlier coordinator
    kLoading,  // until the member replies
    kReady,
    kTelling,  // router: ready, and being told a placement
    kReleasing,
    kWaiting,  // bundle: UNAVAILABLE for now; kUnknown again after a
               // while
    kPaused,   // failed to load; kUnknown again after a while
    kLeftOut,  // router: its release derives other segments
  };
  State state = State::kUnknown;
  int64_t command = 0;           // the last one
  uint64_t content = 0;          // ServedModel::content; 0: not known
  int reports = 0;               // consecutive heartbeats that had it
  int refusals = 0;              // in a row
  absl::Status refusal;          // the reason, if it is left out
  std::vector<int32_t> experts;  // bundle: ascending; empty if unknown
  int64_t bytes = 0;             // bundle: of these
  int64_t version = 0;  // router: of the placement that it has, or is told
};

// A live member with its sessions.
struct ObservedMember {
  Member member;
  std::map<std::string, HeldSession> sessions;
  // Sessions in its last heartbeat.
  std::set<std::string> reported = {};
  // Bytes that models' assignments are about to add to its sessions.
  int64_t promised_bytes = 0;

  // Whether experts may be placed on it: a worker that is not leaving.
  bool takes_experts() const {
    return member.info.role == MemberRole::kExpertWorker && !member.leaving;
  }
};
using ObservedMembers = std::map<MemberKey, ObservedMember>;

// The experts that workers should have, each list ascending.
using ExpertAssignment = std::map<MemberKey, std::vector<int32_t>>;

// A wanted version of a model.
struct ServedModel {
  enum class Phase {
    kLoading,
    kLoaded,     // on all routers that can load it
    kAnswering,  // its name refers to it on all routers
  };

  std::string session;   // "name@version"
  ModelRequest request;  // as resolved then
  std::string folder;    // of the checkpoint, canonical
  int64_t number = 0;    // later requests have higher ones
  ServingPlan plan;
  uint64_t content = 0;      // hash of segments and checkpoint; not 0
  int32_t experts = 0;       // E; 0: it is dense
  int32_t replicas = 1;      // target replicas per expert
  std::vector<double> load;  // rows a second of each expert, [E]; or empty
  bool standby = false;      // name refers to another version until kLoaded
  bool adopted = false;      // served by an earlier coordinator

  Phase phase = Phase::kLoading;
  absl::Status failure;  // not OK: it has failed
  ExpertAssignment assignment;
  // The placement that routers should have; each change, also of `standby`,
  // gets a new version. Version 0: the one from an earlier coordinator.
  v1::Placement placement;
  // Bundles of workers that have not rejoined yet, placed by an earlier
  // coordinator or before these were lost.
  v1::Placement away;
  // All its workers were lost while it served: those that come back get only
  // what they had until all are there, or for a lease.
  bool settling = false;
  // The last complete locations of experts, by the names of the workers then: a
  // restarted worker gets its experts back.
  std::map<std::vector<std::string>, ExpertLists> homes;

  // Routers may be serving it: no failure removes it.
  bool may_serve() const { return adopted || phase != Phase::kLoading; }
};

struct DesiredModels {
  std::map<std::string, ServedModel> models;  // by session
  // Names to be served as soon as possible: sessions that members have of them
  // are kept.
  std::set<std::string> awaited;
};

// "name@version" of a served model's session, of a router or a bundle.
inline std::string ModelOf(const std::string& session) {
  return session.substr(0, session.find('#'));
}

// Whether a member's session belongs to the model, not to an earlier one of the
// same name and version.
inline bool IsOfModel(const std::string& session, const HeldSession& held,
                      const ServedModel& model) {
  return ModelOf(session) == model.session && held.content == model.content;
}
// Whether routers may call the bundle.
bool IsPlaced(const ServedModel& model, const std::string& worker,
              const std::string& session);
// Whether a bundle may be relied on.
inline bool IsLoadedOrLoading(const HeldSession& held) {
  return held.state != HeldSession::State::kPaused &&
         held.state != HeldSession::State::kReleasing;
}

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_SERVING_SERVED_MODEL_H_
