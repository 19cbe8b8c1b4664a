// gshard explain: the experts that a sentence's tokens visit.

#include "absl/strings/str_cat.h"
#include "client/commands.h"
#include "client/proto_json.h"
#include "client/routing_tables.h"
#include "client/translate_flags.h"
#include "proto/gshard/v1/translation.grpc.pb.h"
#include "services/base/status_macros.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/security/security.h"
#include "services/rpc/wire/status.h"

namespace gshard {

absl::Status ExplainCommand(Arguments arguments, Console& console) {
  SystemFlags system(console);
  v1::ExplainRoutingRequest request;
  std::string language, target, model;
  std::vector<std::string> routers;
  absl::Duration timeout = absl::Seconds(30);
  bool json = false;
  Flags flags("gshard explain",
              "Shows which experts the tokens of a sentence visit, with which "
              "weights, and which workers hold them. For debugging: routers "
              "answer if they were started with --enable_debug_calls.");
  flags.Positional("TEXT", 1, 1, "the sentence");
  flags.Text("from", &language, "LANGUAGE",
             "language of the text; left out: the model's default");
  flags.Text("target", &target, "TEXT",
             "a translation to follow through the decoder");
  flags.Text("model", &model, "NAME",
             "model, or name@version; left out if only one is served");
  flags.List("router", &routers, "ADDRESS",
             "routers to ask, the next if one is unavailable; left out: all "
             "that the coordinator knows");
  flags.Duration("timeout", &timeout, "how long to wait");
  flags.Bool("json", &json, "print one JSON object");
  system.Declare(flags);
  flags.Example(
      "gshard explain \"Bibliothek zum Lesen von Bildern\" --from de");
  flags.Example("gshard explain Bibliothek --from de --target library --json");
  ASSIGN_OR_RETURN(const auto parsed, ParseFlags(flags, arguments, console));
  if (!parsed.has_value()) return absl::OkStatus();
  request.set_model(model);
  request.set_target(target);
  request.mutable_sentence()->set_text(parsed->positional[0]);
  request.mutable_sentence()->set_source_language(language);

  ASSIGN_OR_RETURN(const CalledRouters called,
                   RoutersToCall(routers, system, /*patience=*/{}, console));
  ASSIGN_OR_RETURN(const std::shared_ptr<const Security> security,
                   Security::CreateForClient(system.security));
  v1::ExplainRoutingResponse response;
  absl::Status status;
  for (const std::string& router : called.addresses) {
    ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel,
                     CreateChannel(router, {.security = security}));
    grpc::ClientContext context;
    SetDeadline(context, absl::ToChronoMilliseconds(timeout));
    const auto stub = v1::TranslationService::NewStub(channel);
    status = Annotate(
        FromGrpcStatus(stub->ExplainRouting(&context, request, &response)),
        absl::StrCat("router ", router));
    if (!absl::IsUnavailable(status)) break;
  }
  if (!status.ok()) return language.empty() ? AskForLanguage(status) : status;
  *console.out << (json ? ProtoToJsonText(response) : RoutingTables(response));
  return absl::OkStatus();
}

}  // namespace gshard
