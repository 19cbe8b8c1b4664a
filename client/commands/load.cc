// gshard load and unload: serving models.

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/commands.h"
#include "client/coordinator_client.h"
#include "client/model_files.h"
#include "client/system_layout.h"
#include "services/base/status_macros.h"
#include "services/config/model_config_proto.h"

namespace gshard {
namespace {

// Tells the user of experts with fewer replicas than requested: workers still
// load them, or are too few.
void TellOfReplicas(CoordinatorClient& coordinator, const std::string& session,
                    Console& console) {
  const auto system = coordinator.Describe();
  if (!system.ok()) return;  // the model is loaded all the same
  int workers = 0;
  for (const v1::Member& member : system->members()) {
    workers += member.role() == v1::MEMBER_ROLE_EXPERT_WORKER;
  }
  for (const v1::SessionInfo& info : system->sessions()) {
    if (info.session() != session || info.experts_below_replicas() == 0) {
      continue;
    }
    *console.error << "gshard: ";
    if (workers < info.replicas()) {
      *console.error << "warning: " << info.experts_below_replicas()
                     << " experts of " << session << " have fewer than "
                     << info.replicas() << " replicas, with " << workers
                     << " worker" << (workers == 1 ? "" : "s")
                     << "; the others are made when more join\n";
    } else {
      *console.error << info.experts_below_replicas() << " experts of "
                     << session << " have fewer than " << info.replicas()
                     << " replicas yet; the others are being made, see "
                        "`gshard wait --full`\n";
    }
  }
}

}  // namespace

absl::Status LoadCommand(Arguments arguments, Console& console) {
  SystemFlags system(console);
  ObjectStoreOptions store;
  v1::LoadModelRequest request;
  bool json = false;
  bool best = false, rollback = false;
  int64_t replicas = 0;
  std::string version, weights;
  absl::Duration timeout = absl::Minutes(10);
  Flags flags(
      "gshard load",
      "Serves a checkpoint under a name. On each router a model of that "
      "name keeps serving until the new one is there.");
  flags.Positional("NAME CHECKPOINT", 1, 2,
                   "the checkpoint's folder, or one that holds several, of "
                   "which the newest is taken; none with --rollback");
  flags.Bool("best", &best,
             "of a folder that holds several, take the checkpoint with the "
             "lowest loss on held-out text instead of the newest");
  flags.Text("version", &version, "VERSION",
             "version to serve it as; left out: the checkpoint's step, and "
             "'-2' or so behind it if that is another checkpoint's");
  flags.Integer(
      "replicas", &replicas, 0, 16,
      "workers that hold each expert, so that all but one may be "
      "lost; changes those of a model that is served; 0: as it is, or "
      "the coordinator's default");
  flags.Choice("weights", &weights, {"float32", "bfloat16", "int8"},
               "what products are made of; int8 takes a quarter of float32's "
               "memory; left out: what the model was trained with");
  flags.Bool("rollback", &rollback,
             "serve what the name served before its present version");
  flags.Duration("timeout", &timeout, "how long loading may take");
  flags.Bool("json", &json, "print one JSON object");
  AddStoreFlags(flags, &store, /*has_insecure=*/true);
  system.Declare(flags);
  flags.Example("gshard load demo demo/checkpoints --replicas=2");
  flags.Example("gshard load demo demo/checkpoints --best --weights=int8");
  flags.Example("gshard load demo --rollback");
  ASSIGN_OR_RETURN(const auto parsed, ParseFlags(flags, arguments, console));
  if (!parsed.has_value()) return absl::OkStatus();
  store.insecure = system.security.insecure;
  ConfigureObjectStore(store);
  request.set_name(parsed->positional[0]);
  request.set_version(version);
  request.set_replicas(static_cast<int32_t>(replicas));
  request.set_rollback(rollback);
  if (!weights.empty()) {
    ASSIGN_OR_RETURN(const ComputeType type, ParseComputeType(weights));
    request.set_weights(ComputeTypeToProto(type));
  }
  if (rollback == (parsed->positional.size() == 2) || (rollback && best)) {
    return UsageError("expected either a checkpoint or --rollback");
  }
  if (!rollback) {
    ASSIGN_OR_RETURN(*request.mutable_checkpoint_directory(),
                     FindCheckpoint(parsed->positional[1], best));
  }
  ASSIGN_OR_RETURN(const auto coordinator, system.Connect());
  ASSIGN_OR_RETURN(
      const std::string session,
      coordinator->LoadModel(request, absl::ToChronoMilliseconds(timeout)));
  *console.out << (json ? absl::StrCat("{\"session\":\"", session, "\"}")
                        : absl::StrCat(session, " is ready"))
               << "\n";
  TellOfReplicas(*coordinator, session, console);
  return absl::OkStatus();
}

absl::Status UnloadCommand(Arguments arguments, Console& console) {
  SystemFlags system(console);
  Flags flags("gshard unload",
              "Stops serving a model, after the calls in flight.");
  flags.Positional("NAME[@VERSION]", 1, 1,
                   "without a version, all that are served or to be served");
  system.Declare(flags);
  flags.Example("gshard unload demo");
  ASSIGN_OR_RETURN(const auto parsed, ParseFlags(flags, arguments, console));
  if (!parsed.has_value()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const auto coordinator, system.Connect());
  const std::string& name = parsed->positional[0];
  if (absl::StrContains(name, "@")) return coordinator->UnloadModel(name);
  ASSIGN_OR_RETURN(const v1::DescribeResponse description,
                   coordinator->Describe());
  std::vector<std::string> meant;
  for (const std::string& awaited : description.awaited_models()) {
    // A bare name is of what waits to be served, without a session.
    if (awaited == name) meant.push_back(name);
  }
  for (const v1::SessionInfo& session : description.sessions()) {
    if (!session.training() &&
        absl::StartsWith(session.session(), absl::StrCat(name, "@"))) {
      meant.push_back(session.session());
    }
  }
  if (meant.empty()) {
    return absl::NotFoundError(
        absl::StrCat("no model ", name, " is loaded; see `gshard describe`"));
  }
  for (const std::string& session : meant) {
    const absl::Status status = coordinator->UnloadModel(session);
    // What has gone meanwhile needs no more.
    if (!status.ok() && !absl::IsNotFound(status)) return status;
  }
  return absl::OkStatus();
}

}  // namespace gshard
