// gshard describe and wait: the state of a system.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/commands.h"
#include "client/coordinator_client.h"
#include "client/job_lines.h"
#include "client/proto_json.h"
#include "client/system_layout.h"
#include "client/system_wait.h"
#include "services/base/status_macros.h"
#include "services/base/table.h"
#include "services/coordinator/store/progress_feed.h"
#include "services/train/progress.h"

namespace gshard {
namespace {

std::string RoleName(v1::MemberRole role) {
  return role == v1::MEMBER_ROLE_ROUTER          ? "router"
         : role == v1::MEMBER_ROLE_EXPERT_WORKER ? "expert worker"
                                                 : "unknown";
}

std::string StateName(v1::SessionInfo::State state) {
  switch (state) {
    case v1::SessionInfo::LOADING:
      return "loading";
    case v1::SessionInfo::READY:
      return "ready";
    case v1::SessionInfo::BROKEN:
      return "broken";
    default:
      return "unknown";
  }
}

std::string Mebibytes(int64_t bytes) {
  return absl::StrFormat("%.1f", bytes / 1048576.0);
}

// Ids as ranges: "0-3,8".
std::string Ranges(const std::set<int32_t>& ids) {
  std::vector<std::string> ranges;
  for (auto id = ids.begin(); id != ids.end();) {
    const int32_t first = *id;
    int32_t last = first;
    while (++id != ids.end() && *id == last + 1) last = *id;
    ranges.push_back(first == last ? absl::StrCat(first)
                                   : absl::StrCat(first, "-", last));
  }
  return absl::StrJoin(ranges, ",");
}

// What one worker holds of a session.
struct Held {
  int64_t count = 0;
  std::set<int32_t> ids;  // empty if they are not asked for
};

std::string MemberTable(const v1::DescribeResponse& system) {
  Table table(
      {"member", "role", "device", "domain", "may leave", "address", "joined",
       "silent ms", "running", "waiting", "expert rows", "MiB"},
      {6, 7, 8, 9, 10, 11});
  std::string waiting;
  for (const v1::Member& member : system.members()) {
    const v1::Heartbeat& load = member.heartbeat();
    const bool is_worker = member.role() == v1::MEMBER_ROLE_EXPERT_WORKER;
    if (!member.leaving_waits_for().empty()) {
      absl::StrAppend(&waiting, member.name(), " wants to leave and waits for ",
                      member.leaving_waits_for(), "\n");
    }
    table.AddRow({member.name(), RoleName(member.role()), member.device(),
                  member.failure_domain(),
                  load.leaving()       ? "leaving"
                  : !is_worker         ? ""
                  : member.may_leave() ? "yes"
                                       : "no",
                  member.address(), FormatDuration(member.joined_ms() / 1000.0),
                  absl::StrCat(member.silent_ms()),
                  absl::StrCat(load.in_flight()), absl::StrCat(load.queued()),
                  absl::StrCat(load.expert_rows()),
                  Mebibytes(load.memory_bytes_used())});
  }
  return table.empty() ? "No members.\n" : table.ToText() + waiting;
}

std::string SessionTable(const v1::DescribeResponse& system) {
  Table table(
      {"session", "purpose", "state", "replicas", "below replicas",
       "unavailable", "sharing a domain", "placement", "held by", "experts"},
      {3, 4, 5, 6});
  for (const v1::SessionInfo& session : system.sessions()) {
    const v1::Placement& placement = session.placement();
    std::string name = session.session();
    std::string purpose = session.training() ? "training" : "serving";
    if (!session.reduce().empty() && session.reduce() != "coordinator") {
      absl::StrAppend(&purpose, ", reduced by ", session.reduce());
    }
    if (session.weights() == v1::ModelConfig::BFLOAT16 ||
        session.weights() == v1::ModelConfig::INT8) {
      absl::StrAppend(&purpose, ", ",
                      absl::AsciiStrToLower(v1::ModelConfig::ComputeType_Name(
                          session.weights())));
    }
    std::string state = StateName(session.state());
    std::string version = absl::StrCat(placement.version());
    // About experts, and only for served models.
    std::string replicas, below_replicas, unavailable, sharing;
    if (!session.training()) {
      replicas = absl::StrCat(session.replicas());
      below_replicas = absl::StrCat(session.experts_below_replicas());
      unavailable = absl::StrCat(session.experts_unavailable());
      sharing = absl::StrCat(session.experts_sharing_domain());
    }
    const auto add = [&](std::string holder, std::string experts) {
      table.AddRow({name, purpose, state, replicas, below_replicas, unavailable,
                    sharing, version, holder, experts});
      // Shown once per session.
      for (std::string* said :
           {&name, &purpose, &state, &replicas, &below_replicas, &unavailable,
            &sharing, &version}) {
        said->clear();
      }
    };
    for (const std::string& router : session.routers()) {
      add(router, "(dense part)");
    }
    // A worker is listed once for each session that it has of it.
    std::vector<std::string> workers;
    std::map<std::string, Held> held;
    for (int i = 0; i < placement.workers_size(); ++i) {
      const v1::WorkerPlacement& worker = placement.workers(i);
      if (held.count(worker.name()) == 0) workers.push_back(worker.name());
      Held& its = held[worker.name()];
      its.count += i < session.expert_counts_size() ? session.expert_counts(i)
                                                    : worker.experts_size();
      its.ids.insert(worker.experts().begin(), worker.experts().end());
    }
    for (const std::string& worker : workers) {
      const Held& its = held[worker];
      add(worker, its.ids.empty()
                      ? absl::StrCat(its.count)
                      : absl::StrCat(its.count, ": ", Ranges(its.ids)));
    }
    if (!name.empty()) add("(nobody)", "");
  }
  std::string awaited;
  for (const std::string& name : system.awaited_models()) {
    absl::StrAppend(&awaited, name,
                    " is to be served, but is not loading yet: the "
                    "coordinator's log says why\n");
  }
  return absl::StrCat(table.empty() ? "No sessions.\n" : table.ToText(),
                      awaited);
}

std::string JobTable(const v1::DescribeResponse& system) {
  Table table({"job", "state", "step", "loss", "tokens/s", "ETA", "checkpoint"},
              {2, 3, 4, 5});
  for (const v1::JobProgress& job : system.jobs()) {
    const bool has_loss = HasLoss(job);
    table.AddRow(
        {job.job(), JobStateName(job.state()),
         absl::StrCat(job.step(), "/", job.total_steps()),
         has_loss ? absl::StrFormat("%.4f", job.loss()) : "",
         has_loss ? absl::StrFormat("%.0f", job.tokens_per_second()) : "",
         job.eta_seconds() < 0 || IsOver(job.state())
             ? ""
             : FormatDuration(job.eta_seconds()),
         job.checkpoint_directory()});
  }
  return table.empty() ? "No jobs.\n" : table.ToText();
}

}  // namespace

absl::Status DescribeCommand(Arguments arguments, Console& console) {
  SystemFlags system(console);
  bool json = false, experts = false;
  Flags flags("gshard describe",
              "Says who is a member and how loaded, which sessions there are "
              "and who holds what of them, and which jobs run or ran.");
  flags.Bool("experts", &experts, "list the ids of each worker's experts");
  flags.Bool("json", &json, "print one JSON object");
  system.Declare(flags);
  flags.Example("gshard describe --experts");
  ASSIGN_OR_RETURN(const auto parsed, ParseFlags(flags, arguments, console));
  if (!parsed.has_value()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const auto coordinator, system.Connect());
  ASSIGN_OR_RETURN(const v1::DescribeResponse description,
                   coordinator->Describe(experts));
  if (json) {
    *console.out << ProtoToJsonText(description);
  } else {
    *console.out << MemberTable(description) << "\n"
                 << SessionTable(description) << "\n"
                 << JobTable(description);
  }
  return absl::OkStatus();
}

absl::Status WaitCommand(Arguments arguments, Console& console) {
  SystemFlags system(console);
  SystemGoal goal;
  absl::Duration timeout = absl::Seconds(60);
  Flags flags("gshard wait",
              "Waits until enough members have joined, a model is ready, and "
              "experts have their replicas, whichever is asked for; "
              "fails when the time is up. Exit codes: 75 the time is up, and "
              "waiting again may help; 70 it would not, for the coordinator "
              "refuses the caller; 2 wrong flags.");
  flags.Integer("routers", &goal.routers, 0, 65536, "routers to wait for");
  flags.Integer("workers", &goal.workers, 0, 65536,
                "expert workers to wait for");
  flags.Text("model", &goal.model, "NAME[@VERSION]",
             "model to wait for; without a version, any that is ready");
  flags.Bool("full", &goal.full,
             "wait until every model to be served is there, and every expert "
             "has its replicas");
  flags.Duration("timeout", &timeout, "how long to wait");
  system.Declare(flags);
  flags.Example("gshard wait --routers 1 --workers 2 --timeout 30s");
  flags.Example("gshard wait --model titles@2000 --full --timeout 5m");
  ASSIGN_OR_RETURN(const auto parsed, ParseFlags(flags, arguments, console));
  if (!parsed.has_value()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const auto coordinator, system.Connect());
  return WithRetryCode(WaitForSystem(*coordinator, goal,
                                     absl::ToChronoMilliseconds(timeout),
                                     [] { return absl::OkStatus(); }));
}

}  // namespace gshard
