#include "client/router_call.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "client/translate_flags.h"
#include "services/base/status_macros.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/security/security.h"
#include "services/rpc/wire/status.h"

namespace gshard {

void RouterCallFlags::Declare(Flags& flags) {
  flags.List("router", &routers, "ADDRESS",
             "routers to ask, the next if one is unavailable; left out: all "
             "that the coordinator knows");
  flags.Duration("timeout", &timeout, "how long to wait");
  system.Declare(flags);
}

absl::Status RouterCallFlags::Make(const Call& call, Console& console) const {
  ASSIGN_OR_RETURN(const CalledRouters called,
                   RoutersToCall(routers, system, /*patience=*/{}, console));
  ASSIGN_OR_RETURN(const std::shared_ptr<const Security> security,
                   Security::CreateForClient(system.security));
  absl::Status status;
  for (const std::string& router : called.addresses) {
    ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel,
                     CreateChannel(router, {.security = security}));
    grpc::ClientContext context;
    SetDeadline(context, absl::ToChronoMilliseconds(timeout));
    const auto stub = v1::TranslationService::NewStub(channel);
    status = Annotate(FromGrpcStatus(call(*stub, &context)),
                      absl::StrCat("router ", router));
    if (!absl::IsUnavailable(status)) break;
  }
  return status;
}

}  // namespace gshard
