// Audit: one log line for each action that changes what a cluster trains or
// serves, even if it was refused: caller, action and outcome.
//
//   {...,"message":"audit","act":"load","caller":"ops","request_id":"order-7",
//    "target":"titles","directory":"/data/titles/step-00020000","outcome":"OK"}
//
// The acts are "load", "unload", "submit", "validate" (of a job that is not to
// be queued), "cancel" and, when the model of a finished job goes into service,
// "serve_as", with the request that submitted the job. For a caller without the
// role, the guard writes a line without a target, since the request has not
// been read. There are no lines for unknown callers, nor for acts that a server
// leaves unanswered when it ends.

#ifndef SERVICES_RPC_SECURITY_AUDIT_H_
#define SERVICES_RPC_SECURITY_AUDIT_H_

#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/rpc/security/caller.h"

namespace gshard {

// The caller and the id of its request.
struct Requester {
  Caller caller;
  std::string request_id;
};

struct Act {
  std::string name;
  Requester requester;
  std::string target;          // a model's or job's name, as received
  std::string directory = {};  // the directory concerned, if any; as received
};

// A warning if the act was refused or failed. Long values are truncated.
void Audit(const Act& act, const absl::Status& outcome);

// Wraps `done` so that it first audits the outcome.
template <typename Result>
std::function<void(absl::StatusOr<Result>)> Audited(
    Act act, std::function<void(absl::StatusOr<Result>)> done) {
  return [act = std::move(act),
          done = std::move(done)](absl::StatusOr<Result> result) {
    Audit(act, result.status());
    done(std::move(result));
  };
}

}  // namespace gshard

#endif  // SERVICES_RPC_SECURITY_AUDIT_H_
