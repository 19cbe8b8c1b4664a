// The tokenizers of a training job: trained from its text, read from files, or
// taken from the checkpoint that training goes on from.

#ifndef SERVICES_COORDINATOR_PREPARATION_JOB_TOKENIZERS_H_
#define SERVICES_COORDINATOR_PREPARATION_JOB_TOKENIZERS_H_

#include <stop_token>
#include <string>

#include "absl/status/statusor.h"
#include "services/checkpoint/checkpoint.h"
#include "services/config/training_job.h"

namespace gshard {

// Files of SentencePiece models, as bytes.
struct JobTokenizers {
  std::string source;
  std::string target;  // empty: `source` is for both sides

  // Where routers find them: source.model and target.model.
  std::string directory;
};

// Where the tokenizers of a job lie while it trains.
std::string TokenizerDirectory(const TrainingJob& job);

// Gets the tokenizers, writes them to TokenizerDirectory, and sets the model's
// vocabulary sizes to theirs. `checkpoint` is null if training starts anew.
// Deterministic. Takes seconds to minutes to train. For `faults` see file.h.
//
// Errors: those of reading the corpus and of training; InvalidArgument if a
// file that the job names is no tokenizer; FailedPrecondition if it is not the
// checkpoint's; Cancelled if it is told to stop.
absl::StatusOr<JobTokenizers> PrepareTokenizers(
    TrainingJob* job, const CheckpointReader* checkpoint, std::stop_token stop,
    FaultPoints* faults = nullptr);

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_PREPARATION_JOB_TOKENIZERS_H_
