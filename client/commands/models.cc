// gshard models: what a router can be asked to translate.

#include <ostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/commands.h"
#include "client/proto_json.h"
#include "client/router_call.h"
#include "proto/gshard/v1/translation.grpc.pb.h"
#include "services/base/status_macros.h"
#include "services/base/table.h"

namespace gshard {
namespace {

std::string ModelTable(const v1::ListModelsResponse& models) {
  Table table(
      {"model", "current", "experts", "languages", "without one", "max length"},
      {5});
  for (const v1::ServedModel& model : models.models()) {
    const std::string& language = model.default_source_language();
    table.AddRow({model.model(), model.current() ? "yes" : "no",
                  model.full() ? "all" : "some are lost",
                  absl::StrJoin(model.source_languages(), ","),
                  language.empty() ? "refused" : language,
                  absl::StrCat(model.max_length())});
  }
  return table.empty() ? "No models.\n" : table.ToText();
}

}  // namespace

absl::Status ModelsCommand(Arguments arguments, Console& console) {
  RouterCallFlags router(console);
  bool json = false;
  Flags flags("gshard models",
              "Lists the models that a router has and the caller may use: "
              "which version a name means, whether all experts have a worker, "
              "the languages of sources, the language of lines without one, "
              "and the most tokens of a source and of a translation.");
  flags.Bool("json", &json, "print one JSON object");
  router.Declare(flags);
  flags.Example("gshard models");
  ASSIGN_OR_RETURN(const auto parsed, ParseFlags(flags, arguments, console));
  if (!parsed.has_value()) return absl::OkStatus();
  v1::ListModelsResponse response;
  RETURN_IF_ERROR(router.Make(
      [&](v1::TranslationService::Stub& stub, grpc::ClientContext* context) {
        return stub.ListModels(context, v1::ListModelsRequest(), &response);
      },
      console));
  *console.out << (json ? ProtoToJsonText(response) : ModelTable(response));
  return absl::OkStatus();
}

}  // namespace gshard
