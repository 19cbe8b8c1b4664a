// Audit: one log line for each action that changes what a cluster trains or
// serves, even if refused: caller, action and outcome.
//
//   {...,"message":"audit","act":"load","caller":"ops","request_id":"order-7",
//    "target":"titles","directory":"/data/titles/step-00020000","outcome":"OK"}
//
// The acts are "load", "unload", "submit", "cancel" and, when a job that was
// trained comes to be served, "serve_as", with the request that submitted it.
// A caller without the role has a line from the guard, without a target, which
// is not read then. Strangers have none, nor do acts that a server leaves
// unanswered when it ends.

#ifndef SERVICES_RPC_SECURITY_AUDIT_H_
#define SERVICES_RPC_SECURITY_AUDIT_H_

#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/rpc/security/caller.h"

namespace gshard {

// Who asks, and by which request.
struct Requester {
  Caller caller;
  std::string request_id;
};

struct Act {
  std::string name;
  Requester requester;
  std::string target;          // a model's or job's name; as it came
  std::string directory = {};  // that it is about, if any; likewise
};

// A warning if it was refused or failed. Long values are truncated.
void Audit(const Act& act, const absl::Status& outcome);

// `done`, after an audit of the outcome.
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
