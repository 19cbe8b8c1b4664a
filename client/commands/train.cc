// gshard train, watch and cancel: training jobs.

#include <algorithm>
#include <ostream>

#include "absl/strings/str_cat.h"
#include "client/commands.h"
#include "client/coordinator_client.h"
#include "client/job_lines.h"
#include "client/system_layout.h"
#include "services/base/status_macros.h"
#include "services/config/training_job.h"
#include "services/config/training_job_proto.h"

namespace gshard {
namespace {

// Whether a job that could not be submitted already exists, running or done: a
// batch system may have lost the process that followed it.
bool IsThere(CoordinatorClient& coordinator, const TrainingJob& job) {
  const auto jobs = coordinator.ListJobs(job.name, /*history=*/false);
  if (!jobs.ok() || jobs->jobs().empty()) return false;
  const v1::JobProgress& progress = jobs->jobs(0).progress();
  return !JobIsOver(progress.state()) ||
         (progress.state() == v1::JOB_STATE_SUCCEEDED &&
          std::max(progress.total_steps(), progress.submitted_steps()) >=
              job.steps);
}

}  // namespace

absl::Status TrainCommand(Arguments arguments, Console& console) {
  SystemFlags system(console);
  v1::SubmitJobRequest request;
  bool check = false, follow = false, resume = false, json = false;
  absl::Duration time_limit = absl::ZeroDuration();
  Flags flags(
      "gshard train",
      "Submits a training job. Paths in it count from the current "
      "directory. The job goes on without this command; with --follow "
      "it prints progress until the end, also past restarts of the "
      "coordinator. Ctrl-C ends the watch, not the job. Exit codes with "
      "--follow: 0 the job is done; 75 it failed, or the coordinator "
      "cannot be reached, and submitting it again with --resume may "
      "help; 70 it would not help; 1 the watch was ended; 2 wrong "
      "flags.");
  flags.Positional("JOB", 1, 1, "TrainingJob as protobuf text");
  flags.Bool("check", &check,
             "only check the job: its fields, the files that it names, rights "
             "and memory; nothing is queued");
  flags.Bool("follow", &follow, "print progress until the job is over");
  flags.Bool("resume", &resume,
             "continue from the last checkpoint in the job's directory; with "
             "--follow a job that runs already is followed");
  flags.Duration("time_limit", &time_limit,
                 "training time, in place of the job's; 0: the job's");
  flags.Bool("json", &json, "print JSON objects, one a line");
  system.Declare(flags);
  flags.Example("gshard train deploy/config/demo_job.textproto --follow");
  ASSIGN_OR_RETURN(const auto parsed, ParseFlags(flags, arguments, console));
  if (!parsed.has_value()) return absl::OkStatus();
  if (check && follow) {
    return UsageError("expected either --check or --follow");
  }

  absl::StatusOr<TrainingJob> loaded = LoadTrainingJob(parsed->positional[0]);
  if (!loaded.ok()) {
    return follow ? WithRetryCode(loaded.status()) : loaded.status();
  }
  TrainingJob& job = *loaded;
  // The coordinator and its members may have other current directories.
  for (std::string* path : PathsOf(&job)) *path = AbsolutePath(*path);
  if (time_limit > absl::ZeroDuration()) {
    job.time_limit_seconds =
        absl::ToInt64Seconds(absl::Ceil(time_limit, absl::Seconds(1)));
  }
  *request.mutable_job() = TrainingJobToProto(job);
  request.set_resume(resume);
  request.set_validate_only(check);
  ASSIGN_OR_RETURN(const auto coordinator, system.Connect());
  const absl::StatusOr<std::string> submitted = coordinator->SubmitJob(request);
  if (!submitted.ok() && follow && resume && IsThere(*coordinator, job)) {
    return FollowJob(*coordinator, job.name, json, console);
  }
  if (!submitted.ok()) {
    return follow ? WithRetryCode(submitted.status()) : submitted.status();
  }
  const std::string& name = *submitted;
  if (follow) return FollowJob(*coordinator, name, json, console);
  if (json) {
    *console.out << "{\"job\":\"" << name << "\"}" << std::endl;
  } else if (check) {
    *console.out << "job " << name << " would be accepted" << std::endl;
  } else {
    *console.out << "job " << name << " was accepted; see `gshard watch "
                 << name << "`" << std::endl;
  }
  return absl::OkStatus();
}

absl::Status WatchCommand(Arguments arguments, Console& console) {
  SystemFlags system(console);
  bool json = false;
  Flags flags("gshard watch",
              "Prints a training job's progress until it is over. Ctrl-C ends "
              "the watch, not the job. Exit codes are those of `gshard train "
              "--follow`.");
  flags.Positional("JOB", 1, 1, "the job's name");
  flags.Bool("json", &json, "print JSON objects, one a line");
  system.Declare(flags);
  flags.Example("gshard watch demo");
  ASSIGN_OR_RETURN(const auto parsed, ParseFlags(flags, arguments, console));
  if (!parsed.has_value()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const auto coordinator, system.Connect());
  return FollowJob(*coordinator, parsed->positional[0], json, console);
}

absl::Status CancelCommand(Arguments arguments, Console& console) {
  SystemFlags system(console);
  Flags flags("gshard cancel",
              "Ends a training job without a further checkpoint, and waits "
              "until its members have released it, which may take minutes if "
              "they load it. Ctrl-C ends the wait; the job ends anyway.");
  flags.Positional("JOB", 1, 1, "the job's name");
  system.Declare(flags);
  flags.Example("gshard cancel demo");
  ASSIGN_OR_RETURN(const auto parsed, ParseFlags(flags, arguments, console));
  if (!parsed.has_value()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const auto coordinator, system.Connect());
  const std::string& name = parsed->positional[0];
  RETURN_IF_ERROR(coordinator->CancelJob(name));
  // A finished job keeps its state.
  const auto jobs = coordinator->ListJobs(name, /*history=*/false);
  const v1::JobState state = jobs.ok() && !jobs->jobs().empty()
                                 ? jobs->jobs(0).progress().state()
                                 : v1::JOB_STATE_CANCELLED;
  *console.out << "job " << name
               << (JobIsOver(state) && state != v1::JOB_STATE_CANCELLED
                       ? absl::StrCat(" was over already: ",
                                      JobStateName(state))
                       : " was cancelled")
               << std::endl;
  return absl::OkStatus();
}

}  // namespace gshard
