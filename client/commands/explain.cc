// gshard explain: the experts that a sentence's tokens visit.

#include <ostream>
#include <string>

#include "client/commands.h"
#include "client/proto_json.h"
#include "client/router_call.h"
#include "client/routing_tables.h"
#include "client/translate_flags.h"
#include "proto/gshard/v1/translation.grpc.pb.h"
#include "services/base/status_macros.h"

namespace gshard {

absl::Status ExplainCommand(Arguments arguments, Console& console) {
  RouterCallFlags router(console);
  v1::ExplainRoutingRequest request;
  std::string language, target, model;
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
  flags.Bool("json", &json, "print one JSON object");
  router.Declare(flags);
  flags.Example(
      "gshard explain \"Bibliothek zum Lesen von Bildern\" --from de");
  flags.Example("gshard explain Bibliothek --from de --target library --json");
  ASSIGN_OR_RETURN(const auto parsed, ParseFlags(flags, arguments, console));
  if (!parsed.has_value()) return absl::OkStatus();
  request.set_model(model);
  request.set_target(target);
  request.mutable_sentence()->set_text(parsed->positional[0]);
  request.mutable_sentence()->set_source_language(language);

  v1::ExplainRoutingResponse response;
  const absl::Status status = router.Make(
      [&](v1::TranslationService::Stub& stub, grpc::ClientContext* context) {
        return stub.ExplainRouting(context, request, &response);
      },
      console);
  if (!status.ok()) return language.empty() ? AskForLanguage(status) : status;
  *console.out << (json ? ProtoToJsonText(response) : RoutingTables(response));
  return absl::OkStatus();
}

}  // namespace gshard
