// A training job's progress as human-readable lines.

#ifndef CLIENT_JOB_LINES_H_
#define CLIENT_JOB_LINES_H_

#include <string>

#include "absl/status/status.h"
#include "client/command.h"
#include "client/coordinator_client.h"

namespace gshard {

// "running", "succeeded", ...
std::string JobStateName(v1::JobState state);

// One line, e.g. "step 120/2000  loss 4.83 ...", or what the job waits for.
std::string JobLine(const v1::JobProgress& progress);

// Prints a line for each progress message until the job has finished; on a
// terminal a JobPanel instead, and the last line. With `json`, messages as
// JSON, one per line. SIGINT, SIGTERM and an output that cannot be written end
// the watch, not the job.
//
// OK only if the job succeeded. Errors: the job's; Cancelled if it was
// cancelled, or if a signal ended the watch; those of WatchJob and CheckOutput.
// The exit code of all but the signal's and the output's says whether to submit
// the job again.
absl::Status FollowJob(CoordinatorClient& coordinator, const std::string& job,
                       bool json, Console& console);

// The same error with the exit code that says whether to try again.
absl::Status WithRetryCode(const absl::Status& status);

}  // namespace gshard

#endif  // CLIENT_JOB_LINES_H_
