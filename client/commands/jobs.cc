// gshard jobs: lists jobs and their outcome.

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "client/commands.h"
#include "client/coordinator_client.h"
#include "client/job_lines.h"
#include "client/proto_json.h"
#include "client/system_layout.h"
#include "services/base/status_macros.h"
#include "services/base/table.h"
#include "services/coordinator/store/progress_feed.h"

namespace gshard {
namespace {

std::string TimeText(int64_t unix_micros) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ",
                          absl::FromUnixMicros(unix_micros),
                          absl::UTCTimeZone());
}

// "4.8312 at 500".
std::string BestText(const v1::JobProgress& job) {
  if (job.best_validation_step() == 0) return "";
  return absl::StrFormat("%.4f at %d", job.best_validation_loss(),
                         job.best_validation_step());
}

std::string JobTable(const v1::ListJobsResponse& jobs) {
  Table table({"job", "state", "step", "attempt", "submitted", "best held out",
               "checkpoint", "why"},
              {2, 3});
  for (const v1::JobInfo& info : jobs.jobs()) {
    const v1::JobProgress& job = info.progress();
    table.AddRow({job.job(), JobStateName(job.state()),
                  absl::StrCat(job.step(), "/", job.total_steps()),
                  absl::StrCat(job.attempt()),
                  TimeText(info.submitted_unix_micros()), BestText(job),
                  job.checkpoint_directory(), job.status().message()});
  }
  return table.empty() ? "No jobs.\n" : table.ToText();
}

std::string HistoryTable(const v1::ListJobsResponse& jobs) {
  Table table({"job", "time", "state", "attempt", "step", "why"}, {3, 4});
  for (const v1::JobInfo& info : jobs.jobs()) {
    std::string name = info.progress().job();
    for (const v1::JobChange& change : info.history()) {
      table.AddRow({name, TimeText(change.unix_micros()),
                    JobStateName(change.state()),
                    absl::StrCat(change.attempt()), absl::StrCat(change.step()),
                    change.cause().message()});
      name.clear();  // shown once per job
    }
  }
  return table.empty() ? "No jobs.\n" : table.ToText();
}

}  // namespace

absl::Status JobsCommand(Arguments arguments, Console& console) {
  SystemFlags system(console);
  bool history = false, json = false;
  Flags flags("gshard jobs",
              "Lists training jobs in the order of their submission, those "
              "that are over included.");
  flags.Positional("JOB", 0, 1, "the name of the only one; left out: all");
  flags.Bool("history", &history,
             "print every change of state with its time and cause");
  flags.Bool("json", &json, "print JSON objects, one a job");
  system.Declare(flags);
  flags.Example("gshard jobs");
  flags.Example("gshard jobs demo --history");
  ASSIGN_OR_RETURN(const auto parsed, ParseFlags(flags, arguments, console));
  if (!parsed.has_value()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const auto coordinator, system.Connect());
  ASSIGN_OR_RETURN(
      const v1::ListJobsResponse jobs,
      coordinator->ListJobs(
          parsed->positional.empty() ? "" : parsed->positional[0], history));
  if (json) {
    for (const v1::JobInfo& info : jobs.jobs()) {
      *console.out << ProtoToJsonLine(info) << "\n";
    }
  } else {
    *console.out << (history ? HistoryTable(jobs) : JobTable(jobs));
  }
  console.out->flush();
  return absl::OkStatus();
}

}  // namespace gshard
