// The tokenizers of a training job: trained on its text, read from files, or
// taken from the checkpoint that training continues from.

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
  std::string target;  // empty: `source` covers both sides

  // Where routers find them: source.model and target.model.
  std::string directory;
};

// Folder of a job's tokenizers while it trains.
std::string TokenizerDirectory(const TrainingJob& job);

// Obtains the tokenizers, writes them to TokenizerDirectory, and sets the
// model's vocabulary sizes to theirs. `checkpoint` is null if training starts
// from scratch. Deterministic. Training takes seconds to minutes. For `faults`
// see file.h.
//
// Errors: those of reading the corpus and of training; InvalidArgument if a
// file named in the job is not a tokenizer, or the source's has no tag for the
// job's default language; FailedPrecondition if a file differs from the
// checkpoint's; Cancelled if stop is requested.
absl::StatusOr<JobTokenizers> PrepareTokenizers(
    TrainingJob* job, const CheckpointReader* checkpoint, std::stop_token stop,
    FaultPoints* faults = nullptr);

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_PREPARATION_JOB_TOKENIZERS_H_
