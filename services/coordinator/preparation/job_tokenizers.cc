#include "services/coordinator/preparation/job_tokenizers.h"

#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/checkpoint/checkpoint.h"
#include "services/data/corpus.h"
#include "services/storage/file.h"
#include "services/storage/object_path.h"
#include "services/storage/storage.h"
#include "services/tokenizer/tokenizer.h"
#include "services/tokenizer/trainer.h"

namespace gshard {
namespace {

// Number of pairs for training tokenizers, which bounds memory.
constexpr size_t kMaxTokenizerPairs = 1'000'000;

std::string FileOf(const std::string& directory, absl::string_view side) {
  return absl::StrCat(directory, "/", side, ".model");
}

// Local file for training a tokenizer if the job's folder is in an object
// store.
std::string LocalPath(absl::string_view side) {
  std::error_code error;
  const auto folder = std::filesystem::temp_directory_path(error);
  return absl::StrCat(error ? "/tmp" : folder.string(), "/gshard-",
                      FileOf("", side).substr(1));
}

// The bytes of a file named by the job, checked against the checkpoint's.
absl::StatusOr<std::string> ReadNamed(absl::string_view field,
                                      const std::string& path,
                                      const std::string& expected) {
  const absl::StatusOr<std::string> bytes = ReadFile(path, kMaxTokenizerBytes);
  if (!bytes.ok()) return Annotate(bytes.status(), field);
  if (!expected.empty() && *bytes != expected) {
    return absl::FailedPreconditionError(absl::StrCat(
        field, ": '", path, "' is not the tokenizer of the checkpoint"));
  }
  return *bytes;
}

// The sentences of one side or both.
std::vector<std::string> SentencesOf(std::vector<SentencePair> pairs,
                                     bool source_side, bool target_side) {
  std::vector<std::string> sentences;
  sentences.reserve(pairs.size() * (source_side && target_side ? 2 : 1));
  const auto take = [&](std::string SentencePair::*side) {
    for (SentencePair& pair : pairs) {
      // What is too long for spm_train is not in the sample.
      if (!(pair.*side).empty()) sentences.push_back(std::move(pair.*side));
    }
  };
  if (source_side) take(&SentencePair::source);
  if (target_side) take(&SentencePair::target);
  return sentences;
}

absl::Status Train(const TrainingJob& job, bool source_side, bool target_side,
                   int64_t vocabulary_size, const std::string& path,
                   std::stop_token stop) {
  ASSIGN_OR_RETURN(CorpusSample corpus,
                   SampleCorpus(TrainFiles(job.data),
                                {.max_pairs = kMaxTokenizerPairs,
                                 .max_side_bytes = kMaxSentenceBytes,
                                 .seed = static_cast<uint64_t>(job.seed)},
                                stop));
  TokenizerOptions options;
  options.vocab_size = static_cast<int32_t>(vocabulary_size);
  options.seed = static_cast<uint32_t>(job.seed);
  if (source_side) options.languages = std::move(corpus.languages);
  return TrainTokenizer(
      options, SentencesOf(std::move(corpus.pairs), source_side, target_side),
      path, stop);
}

// The bytes of one side's tokenizer; `in_checkpoint` is empty without one.
absl::StatusOr<std::string> Prepare(const TrainingJob& job,
                                    absl::string_view side,
                                    const std::string& in_checkpoint,
                                    std::stop_token stop, FaultPoints* faults) {
  const Storage& storage = Storage::Of(TokenizerDirectory(job));
  RETURN_IF_ERROR(storage.MakeFolder(TokenizerDirectory(job), faults));
  const bool is_source = side == "source";
  const std::string& named = is_source ? job.data.source_tokenizer_path
                                       : job.data.target_tokenizer_path;
  const std::string path = FileOf(TokenizerDirectory(job), side);
  std::string bytes = in_checkpoint;
  if (!named.empty()) {
    ASSIGN_OR_RETURN(
        bytes, ReadNamed(absl::StrCat("data.", side, "_tokenizer_path"), named,
                         in_checkpoint));
  } else if (bytes.empty()) {
    const std::string trained =
        absl::StrCat(IsObjectPath(path) ? LocalPath(side) : path, ".",
                     UniqueDigits(), ".tmp");
    RETURN_IF_ERROR(Annotate(
        Train(job, is_source, !is_source || job.model.shared_vocabulary,
              is_source ? job.model.source_vocabulary_size
                        : job.model.target_vocabulary_size,
              trained, stop),
        absl::StrCat(side, " tokenizer")));
    const auto read = ReadFile(trained, kMaxTokenizerBytes);
    RETURN_IF_ERROR(RemoveTree(trained, IsObjectPath(path) ? nullptr : faults));
    ASSIGN_OR_RETURN(bytes, read);
  }
  RETURN_IF_ERROR(storage.Write(path, bytes, faults));
  return bytes;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Parse(const std::string& bytes,
                                                 absl::string_view side) {
  auto tokenizer = Tokenizer::FromModelBytes(bytes);
  if (tokenizer.ok()) return tokenizer;
  absl::Status status =
      Annotate(tokenizer.status(), absl::StrCat(side, " tokenizer"));
  if (!absl::IsDataLoss(status)) return status;
  return absl::InvalidArgumentError(status.message());
}

// Requests without a language would get a tag that the vocabulary lacks.
absl::Status CheckDefaultLanguage(const Tokenizer& source,
                                  const std::string& language) {
  if (language.empty()) return absl::OkStatus();
  const absl::Status status = source.LanguageTagId(language).status();
  if (status.ok()) return status;
  return absl::InvalidArgumentError(
      absl::StrCat("data.default_", status.message()));
}

}  // namespace

std::string TokenizerDirectory(const TrainingJob& job) {
  return absl::StrCat(job.checkpoint.directory, "/tokenizer");
}

absl::StatusOr<JobTokenizers> PrepareTokenizers(
    TrainingJob* job, const CheckpointReader* checkpoint, std::stop_token stop,
    FaultPoints* faults) {
  JobTokenizers tokenizers;
  tokenizers.directory = TokenizerDirectory(*job);
  std::string source_before, target_before;
  if (checkpoint != nullptr) {
    ASSIGN_OR_RETURN(source_before, checkpoint->ReadTokenizer());
    if (!job->model.shared_vocabulary) {
      ASSIGN_OR_RETURN(target_before, checkpoint->ReadTargetTokenizer());
    }
  }
  ASSIGN_OR_RETURN(tokenizers.source,
                   Prepare(*job, "source", source_before, stop, faults));
  ASSIGN_OR_RETURN(const auto source, Parse(tokenizers.source, "source"));
  RETURN_IF_ERROR(CheckDefaultLanguage(*source, job->data.default_language));
  job->model.source_vocabulary_size = source->vocab_size();
  if (job->model.shared_vocabulary) {
    job->model.target_vocabulary_size = job->model.source_vocabulary_size;
  } else {
    ASSIGN_OR_RETURN(tokenizers.target,
                     Prepare(*job, "target", target_before, stop, faults));
    ASSIGN_OR_RETURN(const auto target, Parse(tokenizers.target, "target"));
    job->model.target_vocabulary_size = target->vocab_size();
  }
  return tokenizers;
}

}  // namespace gshard
