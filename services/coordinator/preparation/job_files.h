// Resolves the files that a training job reads when it is submitted, and checks
// what they decide, and that its folders can be written.

#ifndef SERVICES_COORDINATOR_PREPARATION_JOB_FILES_H_
#define SERVICES_COORDINATOR_PREPARATION_JOB_FILES_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "services/config/training_job.h"

namespace gshard {

// Expands each shell pattern among the text files of `job`, whose paths are
// absolute, to the matching files. A path that exists is taken literally.
// initialize_from becomes the checkpoint that it refers to now, unless the
// job's folder has checkpoints, from which it would continue.
//
// Errors: InvalidArgument naming the field, if a file does not exist or cannot
// be read, or nothing matches, or too many files do, or a folder of a disk
// cannot be written, or for the size of a vocabulary that has no file and
// cannot be trained; those of ValidateTrainingJob; naming the field, those of
// storage.h that may pass, such as Unavailable, and DataLoss and
// FailedPrecondition of CheckpointAt for what is wrong with initialize_from.
absl::Status FindJobFiles(TrainingJob* job);

// How long a router may take to index the texts of a job, based on their sizes:
// a pace that even a router with one slow core and a slow disk exceeds several
// times. A file that cannot be accessed counts as empty.
absl::Duration TimeToIndex(const TrainingData& data);

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_PREPARATION_JOB_FILES_H_
