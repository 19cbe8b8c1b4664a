#include "tests/reference/local_job.h"

#include <utility>

#include "services/base/status_macros.h"
#include "services/data/batch.h"
#include "services/data/epoch_sampler.h"
#include "services/tokenizer/tokenizer.h"

namespace gshard {

absl::StatusOr<std::unique_ptr<LocalJob>> LocalJob::Create(
    TrainingJob job, const std::string& tokenizer_path) {
  ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(tokenizer_path));
  job.model.source_vocabulary_size = job.model.target_vocabulary_size =
      tokenizer->vocab_size();
  const TextOptions options{.max_length = static_cast<int32_t>(job.max_length)};
  const auto seed = static_cast<uint64_t>(job.seed);
  const auto tokens = static_cast<int32_t>(job.tokens_per_microbatch);
  const std::vector<TextFile> files = TrainFiles(job.data);
  ASSIGN_OR_RETURN(Dataset train,
                   Dataset::Read(files, *tokenizer, *tokenizer, options));
  std::unique_ptr<LocalJob> local(new LocalJob(std::move(train)));
  ASSIGN_OR_RETURN(EpochSampler sampler,
                   EpochSampler::Create(local->train_, files,
                                        job.data.sampling_temperature, seed));
  ASSIGN_OR_RETURN(
      local->order_,
      BatchOrder::Create(local->train_,
                         {.seed = seed,
                          .tokens = tokens,
                          .microbatches_per_step =
                              static_cast<int32_t>(job.microbatches_per_step)},
                         std::move(sampler)));
  if (const auto dev = DevFiles(job.data); !dev.empty()) {
    ASSIGN_OR_RETURN(local->dev_,
                     Dataset::Read(dev, *tokenizer, *tokenizer, options));
    ASSIGN_OR_RETURN(
        local->held_out_,
        HeldOut::Create(*local->dev_, {.seed = seed,
                                       .tokens = tokens,
                                       .max_sentences = static_cast<int32_t>(
                                           job.validation.max_sentences)}));
  }
  ASSIGN_OR_RETURN(local->trainer_, LocalTrainer::Create(job));
  return local;
}

absl::StatusOr<StepResult> LocalJob::Step() {
  return trainer_->Step([&](int64_t step, int64_t index) {
    return *ReadBatch(train_, order_->Microbatch(step - 1, index));
  });
}

absl::StatusOr<StepStatistics> LocalJob::Validate() const {
  return trainer_->Validate(held_out_microbatches(), [&](int64_t index) {
    return *ReadBatch(*dev_, held_out_->Microbatch(index));
  });
}

}  // namespace gshard
