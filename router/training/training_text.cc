#include "router/training/training_text.h"

#include <stdlib.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/checkpoint/sha256.h"
#include "services/storage/object_path.h"
#include "services/tokenizer/tokenizer.h"

namespace gshard {
namespace {

absl::StatusOr<TextTokenizers> LoadTokenizers(const ModelConfig& model,
                                              const std::string& directory) {
  TextTokenizers tokenizers;
  ASSIGN_OR_RETURN(tokenizers.source,
                   Tokenizer::Load(absl::StrCat(directory, "/source.model")));
  RETURN_IF_ERROR(tokenizers.source->CheckVocabulary(
      "source", model.source_vocabulary_size));
  tokenizers.target = tokenizers.source;
  if (!model.shared_vocabulary) {
    ASSIGN_OR_RETURN(tokenizers.target,
                     Tokenizer::Load(absl::StrCat(directory, "/target.model")));
  }
  RETURN_IF_ERROR(tokenizers.target->CheckVocabulary(
      "target", model.target_vocabulary_size));
  return tokenizers;
}

std::vector<std::string> IndexDirectories(const TrainingJob& job) {
  std::vector<std::string> directories;
  // An index is read in small pieces, which requires a disk.
  if (!IsObjectPath(job.checkpoint.directory)) {
    directories.push_back(absl::StrCat(job.checkpoint.directory, "/text"));
  }
  // Set, but empty, counts as not set.
  if (const char* cache = getenv("XDG_CACHE_HOME");
      cache != nullptr && *cache != '\0') {
    directories.push_back(absl::StrCat(cache, "/gshard/text"));
  } else if (const char* home = getenv("HOME"); home != nullptr) {
    directories.push_back(absl::StrCat(home, "/.cache/gshard/text"));
  }
  return directories;
}

void WarnOfBadLines(const TrainingJob& job, absl::string_view which,
                    const TextReport& report) {
  if (report.Summary().empty()) return;
  LogWarning("some of the text is left out", {{"job", job.name},
                                              {"text", which},
                                              {"pairs", report.pairs},
                                              {"summary", report.Summary()}});
}

}  // namespace

absl::StatusOr<std::unique_ptr<TrainingText>> TrainingText::Open(
    const TrainingJob& job, const std::string& tokenizer_directory,
    int64_t done_steps, std::stop_token stop) {
  ASSIGN_OR_RETURN(const TextTokenizers tokenizers,
                   LoadTokenizers(job.model, tokenizer_directory));
  const TextOptions options{.max_length = static_cast<int32_t>(job.max_length)};
  const std::vector<std::string> directories = IndexDirectories(job);
  const auto seed = static_cast<uint64_t>(job.seed);
  const auto tokens = static_cast<int32_t>(job.tokens_per_microbatch);

  std::unique_ptr<TrainingText> text(new TrainingText());
  const std::vector<TextFile> train = TrainFiles(job.data);
  ASSIGN_OR_RETURN(text->train_, StreamedText::Open(train, tokenizers, options,
                                                    directories, stop));
  WarnOfBadLines(job, "training", text->train_->report());
  ASSIGN_OR_RETURN(EpochSampler sampler,
                   EpochSampler::Create(*text->train_, train,
                                        job.data.sampling_temperature, seed));
  ASSIGN_OR_RETURN(
      text->order_,
      BatchOrder::Create(*text->train_,
                         {.seed = seed,
                          .tokens = tokens,
                          .microbatches_per_step =
                              static_cast<int32_t>(job.microbatches_per_step)},
                         std::move(sampler)));
  RETURN_IF_ERROR(text->order_->Prepare(done_steps, stop));
  const std::vector<TextFile> dev = DevFiles(job.data);
  if (dev.empty()) return text;
  ASSIGN_OR_RETURN(text->dev_, StreamedText::Open(dev, tokenizers, options,
                                                  directories, stop));
  WarnOfBadLines(job, "held out", text->dev_->report());
  ASSIGN_OR_RETURN(
      text->held_out_,
      HeldOut::Create(*text->dev_, {.seed = seed,
                                    .tokens = tokens,
                                    .max_sentences = static_cast<int32_t>(
                                        job.validation.max_sentences)}));
  return text;
}

absl::StatusOr<Batch> TrainingText::Read(int64_t step, int32_t index) const {
  return ReadBatch(*train_, order_->Microbatch(step - 1, index));
}

absl::StatusOr<Batch> TrainingText::ReadHeldOut(int32_t index) const {
  return ReadBatch(*dev_, held_out_->Microbatch(index));
}

v1::TextLoaded TrainingText::Describe() const {
  v1::TextLoaded loaded;
  const TextReport& report = train_->report();
  loaded.set_pairs(report.pairs);
  loaded.set_bad_lines(report.bad_lines());
  loaded.set_left_out_long(report.left_out_long);
  loaded.set_digest(
      Sha256(absl::StrCat(train_->digest(), dev_ ? dev_->digest() : "")));
  loaded.set_validation_microbatches(validation_microbatches());
  return loaded;
}

int64_t TrainingText::memory_bytes() const {
  return train_->memory_bytes() + (dev_ ? dev_->memory_bytes() : 0);
}

}  // namespace gshard
