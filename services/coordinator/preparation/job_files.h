// The files that a training job reads, as they are when it is submitted.

#ifndef SERVICES_COORDINATOR_PREPARATION_JOB_FILES_H_
#define SERVICES_COORDINATOR_PREPARATION_JOB_FILES_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "services/config/training_job.h"

namespace gshard {

// Puts the files that match in the place of each shell pattern among the text
// files of `job`, whose paths are absolute. A path that is there stands for
// itself, whatever is in its name.
//
// Errors: InvalidArgument naming the field, if a file is not there or cannot be
// read, or nothing matches; those of ValidateTrainingJob.
absl::Status FindJobFiles(TrainingJob* job);

// How long a router may take to index the texts of a job, which grows with
// their sizes: a pace that a router with one slow core and a slow disk exceeds
// several times. A file that cannot be looked at counts as empty.
absl::Duration TimeToIndex(const TrainingData& data);

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_PREPARATION_JOB_FILES_H_
