// A training job's progress as human-readable lines.

#ifndef CLIENT_JOB_LINES_H_
#define CLIENT_JOB_LINES_H_

#include <string>

#include "absl/status/status.h"
#include "client/command.h"
#include "client/coordinator_client.h"

namespace gshard {

// Whether there are numbers of a step: a job that goes on from a checkpoint has
// none before it makes one itself.
bool HasLoss(const v1::JobProgress& progress);

// One line, e.g. "step 120/2000  loss 4.83 ...", or what the job waits for.
std::string JobLine(const v1::JobProgress& progress);

// What the training text has, e.g. "text: 1,204,331 pairs; skipped 3,120 bad
// lines, 8,004 longer than max_length", as a warning if more than 1% of it is
// skipped; empty until it has been read.
std::string TextLine(const v1::JobProgress& progress);

// Prints the TextLine once, and a line for each progress message until the job
// has finished; on a terminal a JobPanel instead, and the last line. With
// `json`, messages as JSON, one per line. `submitted`: see WatchJob. SIGINT,
// SIGTERM and an output that cannot be written end the watch, not the job.
//
// OK only if the job succeeded. Errors: the job's; Cancelled if it was
// cancelled, or if a signal ended the watch; those of WatchJob and CheckOutput.
// The exit code of all but the signal's and the output's says whether to submit
// the job again.
absl::Status FollowJob(CoordinatorClient& coordinator, const std::string& job,
                       bool submitted, bool json, Console& console);

// The same error with the exit code that says whether to try again.
absl::Status WithRetryCode(const absl::Status& status);

}  // namespace gshard

#endif  // CLIENT_JOB_LINES_H_
