// gshard train, watch and cancel: training jobs.

#include <algorithm>
#include <optional>
#include <ostream>

#include "absl/strings/str_cat.h"
#include "client/commands.h"
#include "client/coordinator_client.h"
#include "client/job_lines.h"
#include "client/system_layout.h"
#include "services/base/status_macros.h"
#include "services/config/training_job.h"
#include "services/config/training_job_proto.h"
#include "services/coordinator/store/progress_feed.h"

namespace gshard {
namespace {

// The job as the coordinator knows it; nothing if it does not.
absl::StatusOr<std::optional<v1::JobProgress>> FindJob(
    CoordinatorClient& coordinator, const std::string& name) {
  const auto jobs = coordinator.ListJobs(name, /*history=*/false);
  if (absl::IsNotFound(jobs.status())) return std::nullopt;
  RETURN_IF_ERROR(jobs.status());
  if (jobs->jobs().empty()) return std::nullopt;
  return jobs->jobs(0).progress();
}

// Tells the user if a job that is to resume cannot.
absl::Status Submit(CoordinatorClient& coordinator,
                    const v1::SubmitJobRequest& request, Console& console) {
  ASSIGN_OR_RETURN(const v1::SubmitJobResponse response,
                   coordinator.SubmitJob(request));
  if (response.begins_anew()) {
    *console.error << "gshard: job " << response.job()
                   << " begins anew: there is no checkpoint in "
                   << request.job().checkpoint().directory() << std::endl;
  }
  return absl::OkStatus();
}

// Submits `job`, which may exist already: a batch system may have lost the
// process that followed it. If it runs, or has all of its steps, tells the user
// so instead of failing. Returns whether there is a job to follow: there is
// none if it is done, but the coordinator was started without its state.
absl::StatusOr<bool> SubmitUnlessThere(CoordinatorClient& coordinator,
                                       const TrainingJob& job,
                                       const v1::SubmitJobRequest& request,
                                       Console& console) {
  absl::Status refusal = Submit(coordinator, request, console);
  if (absl::IsAlreadyExists(refusal)) {
    ASSIGN_OR_RETURN(const auto found, FindJob(coordinator, job.name));
    if (found.has_value() && !IsOver(found->state())) {
      *console.error << "gshard: job " << job.name << " is "
                     << JobStateName(found->state())
                     << " already and is followed as it was submitted; changes "
                        "of its file are not applied: "
                     << refusal.message() << std::endl;
      return true;
    }
    // It may have ended since.
    if (found.has_value()) refusal = Submit(coordinator, request, console);
  }
  if (refusal.ok()) return true;
  if (!absl::IsOutOfRange(refusal)) return refusal;  // all steps are done
  ASSIGN_OR_RETURN(const auto found, FindJob(coordinator, job.name));
  if (!found.has_value()) {
    *console.error << "gshard: job " << job.name
                   << " is done; the coordinator does not know it, but has its "
                      "checkpoint: "
                   << refusal.message()
                   << (job.serve_as.empty()
                           ? ""
                           : "; to have it served, see `gshard load`")
                   << std::endl;
    return false;
  }
  if (found->state() != v1::JOB_STATE_SUCCEEDED ||
      std::max(found->total_steps(), found->submitted_steps()) < job.steps) {
    return refusal;
  }
  *console.error << "gshard: job " << job.name
                 << " is done already and is not submitted again: "
                 << refusal.message() << std::endl;
  return true;
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
             "continue from the last checkpoint in the job's directory, or "
             "begin anew if there never was one; with "
             "--follow a job that runs already is followed as it was "
             "submitted, and one that has all of its steps is done");
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
  for (auto& [field, path] : PathsOf(&job)) *path = AbsolutePath(*path);
  if (time_limit > absl::ZeroDuration()) {
    job.time_limit_seconds =
        absl::ToInt64Seconds(absl::Ceil(time_limit, absl::Seconds(1)));
  }
  *request.mutable_job() = TrainingJobToProto(job);
  request.set_resume(resume);
  request.set_validate_only(check);
  ASSIGN_OR_RETURN(const auto coordinator, system.Connect());
  if (follow && resume) {
    const absl::StatusOr<bool> there =
        SubmitUnlessThere(*coordinator, job, request, console);
    if (!there.ok()) return WithRetryCode(there.status());
    if (!*there) return absl::OkStatus();
    return FollowJob(*coordinator, job.name, /*submitted=*/true, json, console);
  }
  const absl::Status submitted = Submit(*coordinator, request, console);
  if (!submitted.ok()) return follow ? WithRetryCode(submitted) : submitted;
  const std::string& name = job.name;
  if (follow) {
    return FollowJob(*coordinator, name, /*submitted=*/true, json, console);
  }
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
  return FollowJob(*coordinator, parsed->positional[0], /*submitted=*/false,
                   json, console);
}

absl::Status CancelCommand(Arguments arguments, Console& console) {
  SystemFlags system(console);
  Flags flags("gshard cancel",
              "Ends a training job without a further checkpoint, and waits "
              "until its members have released it, which may take minutes if "
              "they load it, or if a disk hangs. Ctrl-C ends the wait; the job "
              "ends anyway.");
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
               << (IsOver(state) && state != v1::JOB_STATE_CANCELLED
                       ? absl::StrCat(" was over already: ",
                                      JobStateName(state))
                       : " was cancelled")
               << std::endl;
  return absl::OkStatus();
}

}  // namespace gshard
