// One call to a router, for commands that ask something of any of them.

#ifndef CLIENT_ROUTER_CALL_H_
#define CLIENT_ROUTER_CALL_H_

#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/command.h"
#include "client/system_layout.h"
#include "proto/gshard/v1/translation.grpc.pb.h"
#include "services/config/flags.h"

namespace gshard {

struct RouterCallFlags {
  explicit RouterCallFlags(const Console& console) : system(console) {}

  void Declare(Flags& flags);

  // Makes a call to each of RoutersToCall(), until one is available. Errors:
  // those of RoutersToCall() and Security::CreateForClient; the call's, with
  // the router's address.
  using Call = std::function<grpc::Status(v1::TranslationService::Stub& stub,
                                          grpc::ClientContext* context)>;
  absl::Status Make(const Call& call, Console& console) const;

  SystemFlags system;
  std::vector<std::string> routers;
  absl::Duration timeout = absl::Seconds(30);
};

}  // namespace gshard

#endif  // CLIENT_ROUTER_CALL_H_
