#include "services/coordinator/preparation/job_checkpoint.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/config/text_proto.h"
#include "services/rpc/wire/tensor_frame.h"
#include "services/storage/canonical_path.h"
#include "services/train/job_options.h"
#include "services/train/parameter_store.h"

namespace gshard {
namespace {

constexpr char kSourceFile[] = "source.model";
constexpr char kTargetFile[] = "target.model";

// The lines "field: value" of a model, except for fields that its tensors do
// not follow from, and the sizes of vocabularies, which the tokenizers have.
std::vector<std::string> FieldsOfTensors(ModelConfig model) {
  const ModelConfig defaults;
  model.name = defaults.name;
  model.source_vocabulary_size = defaults.source_vocabulary_size;
  model.target_vocabulary_size = defaults.target_vocabulary_size;
  if (model.positions != Positions::kLearned) {
    model.max_positions = defaults.max_positions;
  }
  model.compute_type = defaults.compute_type;
  model.wire_type = defaults.wire_type;
  model.dropout = defaults.dropout;
  model.gate = defaults.gate;
  return absl::StrSplit(ModelConfigToText(model), '\n');
}

absl::StatusOr<ModelConfig> ModelOf(const CheckpointReader& checkpoint) {
  absl::StatusOr<ModelConfig> model =
      ParseModelConfig(checkpoint.manifest().model_config);
  if (model.ok()) return model;
  return absl::DataLossError(absl::StrCat(
      checkpoint.path(), ": model_config: ", model.status().message()));
}

// Checks that the model of `checkpoint` has the tensors of the job's.
absl::Status CheckSameTensors(const TrainingJob& job,
                              const CheckpointReader& checkpoint,
                              const ModelConfig& model) {
  const std::vector<std::string> expected = FieldsOfTensors(model);
  const std::vector<std::string> got = FieldsOfTensors(job.model);
  const auto [a, b] =
      std::mismatch(expected.begin(), expected.end(), got.begin(), got.end());
  if (a == expected.end() || b == got.end()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("model: expected '", *a, "' as in the checkpoint ",
                   checkpoint.path(), ", got '", *b, "'"));
}

// The model of a checkpoint that has everything that serving it needs.
absl::StatusOr<ModelConfig> ServableModel(const CheckpointReader& checkpoint) {
  ASSIGN_OR_RETURN(ModelConfig model, ModelOf(checkpoint));
  const Manifest& manifest = checkpoint.manifest();
  std::vector<TensorSpec> expected =
      CheckpointTensors(model, /*optimizer=*/nullptr);
  for (const TensorEntry& entry : manifest.tensors) {
    if (absl::StartsWith(entry.name, "optimizer/")) {
      expected.push_back({entry.name, entry.type, entry.dims});
    }
  }
  RETURN_IF_ERROR(checkpoint.CheckExactly(expected));
  if (manifest.tokenizer_file.empty() ||
      (!model.shared_vocabulary && manifest.target_tokenizer_file.empty())) {
    return absl::FailedPreconditionError(absl::StrCat(
        "checkpoint ", checkpoint.path(), " lacks a tokenizer of the ",
        manifest.tokenizer_file.empty() ? "source" : "target", " side"));
  }
  return model;
}

// Checks that `tensors` are exactly those of the job's model.
absl::Status CheckComplete(const TrainingJob& job,
                           const std::vector<TensorEntry>& tensors) {
  const std::vector<TensorSpec> expected =
      CheckpointTensors(job.model, MakeOptimizer(job.optimizer).get());
  std::map<absl::string_view, const TensorEntry*> found;
  for (const TensorEntry& entry : tensors) found[entry.name] = &entry;
  for (const TensorSpec& spec : expected) {
    const auto entry = found.find(spec.name);
    if (entry == found.end()) {
      return absl::FailedPreconditionError(
          absl::StrCat("tensor '", spec.name, "' is in no shard"));
    }
    if (entry->second->type != spec.type || entry->second->dims != spec.dims) {
      return absl::FailedPreconditionError(absl::StrCat(
          "tensor '", spec.name, "' of ", entry->second->file, ": expected ",
          TypeString(spec.type, spec.dims), ", got ",
          TypeString(entry->second->type, entry->second->dims)));
    }
  }
  if (tensors.size() == expected.size()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("expected ", expected.size(), " tensors in the shards, got ",
                   tensors.size()));
}

// Checks that the checkpoint belongs to the job, by name. One without a
// readable job belongs to anybody.
absl::Status CheckWrittenBy(const TrainingJob& job,
                            const CheckpointReader& checkpoint) {
  const std::optional<v1::TrainingJob> writer = WriterOf(checkpoint);
  if (!writer.has_value() || writer->name() == job.name) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("checkpoint.directory: expected checkpoints of job '",
                   job.name, "', got ", checkpoint.path(), " of job '",
                   writer->name(), "'; choose another folder"));
}

// Removes checkpoints that the job does not keep once it has that of `step`.
absl::Status Prune(const TrainingJob& job, int64_t step,
                   std::vector<std::string> pinned, FaultPoints* faults) {
  const std::string& root = job.checkpoint.directory;
  const int64_t base = RollbackBase(job, step);
  if (job.on_nonfinite == OnNonfinite::kRollback && base > 0) {
    // The checkpoint of the base itself may have been given up for that of a
    // rescue. A rollback then makes the base again from the one before.
    absl::StatusOr<std::string> kept = CheckpointUpTo(root, base);
    if (!kept.ok() && !absl::IsNotFound(kept.status())) return kept.status();
    if (kept.ok()) pinned.push_back(*std::move(kept));
  }
  return PruneCheckpoints(root,
                          {.last = job.checkpoint.keep,
                           .best = job.checkpoint.keep_best,
                           .pinned = std::move(pinned)},
                          faults);
}

// Checks that the checkpoint has some, but not all, of the job's steps.
absl::Status CheckGoesOn(const TrainingJob& job,
                         const CheckpointReader& checkpoint) {
  const Manifest& manifest = checkpoint.manifest();
  const auto seed = manifest.metadata.find(kSeedKey);
  if (seed == manifest.metadata.end() ||
      seed->second != absl::StrCat(job.seed)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "seed: expected ",
        seed == manifest.metadata.end() ? "none" : seed->second,
        " as in the checkpoint ", checkpoint.path(), ", got ", job.seed));
  }
  if (manifest.step < job.steps) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat(
      "steps: expected more than the ", manifest.step, " of the checkpoint ",
      checkpoint.path(), ", got ", job.steps));
}

}  // namespace

absl::StatusOr<std::string> CommitJobCheckpoint(
    const TrainingJob& job, const JobTokenizers& tokenizers, int64_t step,
    std::vector<TensorEntry> tensors, std::optional<double> validation_loss,
    std::vector<std::string> pinned, FaultPoints* faults) {
  RETURN_IF_ERROR(CheckComplete(job, tensors));
  Manifest manifest;
  manifest.step = step;
  manifest.model_config = ModelConfigToText(job.model);
  manifest.tokenizer_file = kSourceFile;
  if (!tokenizers.target.empty()) manifest.target_tokenizer_file = kTargetFile;
  manifest.validation_loss = validation_loss;
  manifest.metadata = {{kJobKey, TrainingJobToText(job)},
                       {kSeedKey, absl::StrCat(job.seed)},
                       {kDefaultLanguageKey, job.data.default_language}};
  manifest.tensors = std::move(tensors);
  ASSIGN_OR_RETURN(
      const std::string path,
      CommitCheckpoint(job.checkpoint.directory, std::move(manifest),
                       tokenizers.source, tokenizers.target, faults));
  const absl::Status pruned = Prune(job, step, std::move(pinned), faults);
  if (!pruned.ok()) {
    LogWarning("old checkpoints stay", {{"status", pruned}});
  }
  return path;
}

int64_t RollbackBase(const TrainingJob& job, int64_t step) {
  const int64_t every = job.checkpoint.every_steps;
  return every > 0 ? step / every * every : 0;
}

absl::StatusOr<std::unique_ptr<CheckpointReader>> LatestOfJob(
    const TrainingJob& job, Scrutiny scrutiny, std::stop_token stop,
    int64_t last) {
  const std::string& root = job.checkpoint.directory;
  auto reader = scrutiny == Scrutiny::kFull
                    ? LatestGoodCheckpoint(root, stop, last)
                    : OpenLatestCheckpoint(root, last);
  if (absl::IsNotFound(reader.status())) return nullptr;
  RETURN_IF_ERROR(reader.status());
  RETURN_IF_ERROR(CheckWrittenBy(job, **reader));
  return reader;
}

absl::StatusOr<std::unique_ptr<CheckpointReader>> OpenToResume(
    const TrainingJob& job, FolderClaim& claim, Scrutiny scrutiny,
    std::stop_token stop) {
  ASSIGN_OR_RETURN(auto reader, LatestOfJob(job, scrutiny, stop));
  if (reader != nullptr) RETURN_IF_ERROR(CheckGoesOn(job, *reader));
  RETURN_IF_ERROR(ClearAfter(job.checkpoint.directory,
                             reader == nullptr ? -1 : reader->manifest().step,
                             &claim));
  return reader;
}

absl::StatusOr<std::unique_ptr<CheckpointReader>> OpenToRollBack(
    const TrainingJob& job, int64_t step, FolderClaim& claim, Scrutiny scrutiny,
    std::stop_token stop) {
  const std::string& root = job.checkpoint.directory;
  auto reader = LatestOfJob(job, scrutiny, stop, step);
  const bool none =
      absl::IsDataLoss(reader.status()) || (reader.ok() && *reader == nullptr);
  if (none && RollbackBase(job, step - 1) > 0) {
    return absl::DataLossError(absl::StrCat(
        "checkpoint ", CheckpointPath(root, step),
        ", to which the job would go back, is lost, and there is no earlier "
        "one",
        reader.ok() ? "" : absl::StrCat(": ", reader.status().message()),
        "; to go on from the newest, resume the job with another on_nonfinite "
        "than ROLLBACK"));
  }
  // Nothing that is kept is older than the first.
  if (none) reader = nullptr;
  RETURN_IF_ERROR(reader.status());
  const int64_t found = *reader == nullptr ? -1 : (*reader)->manifest().step;
  // Later ones are as good as they were.
  if (found < step) RETURN_IF_ERROR(ClearAfter(root, found, &claim, step));
  return reader;
}

absl::Status CheckWithoutCheckpoints(const TrainingJob& job) {
  ASSIGN_OR_RETURN(const auto checkpoints,
                   ListCheckpoints(job.checkpoint.directory));
  if (checkpoints.empty()) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(
      "checkpoint.directory: expected one without checkpoints, got ",
      checkpoints.front(), "; choose another folder, or resume"));
}

absl::Status CheckResumable(const TrainingJob& job,
                            const CheckpointReader& checkpoint) {
  ASSIGN_OR_RETURN(const ModelConfig model, ModelOf(checkpoint));
  RETURN_IF_ERROR(CheckSameTensors(job, checkpoint, model));
  return checkpoint.CheckExactly(
      CheckpointTensors(model, MakeOptimizer(job.optimizer).get()));
}

absl::StatusOr<std::unique_ptr<CheckpointReader>> OpenInitial(
    const TrainingJob& job, Scrutiny scrutiny, std::stop_token stop) {
  if (job.initialize_from.empty()) return nullptr;
  auto reader = CheckpointReader::Open(job.initialize_from);
  absl::Status status = reader.status();
  if (status.ok()) {
    const auto model = ServableModel(**reader);
    status =
        model.ok() ? CheckSameTensors(job, **reader, *model) : model.status();
  }
  if (status.ok() && scrutiny == Scrutiny::kFull) {
    status = (*reader)->Verify(stop);
  }
  RETURN_IF_ERROR(Annotate(status, "initialize_from"));
  return reader;
}

std::optional<v1::TrainingJob> WriterOf(const CheckpointReader& checkpoint) {
  const StringMap& metadata = checkpoint.manifest().metadata;
  const auto text = metadata.find(kJobKey);
  if (text == metadata.end()) return std::nullopt;
  v1::TrainingJob writer;
  const absl::Status read =
      ParseTextProto(text->second, &writer, UnknownFields::kIgnored);
  if (read.ok()) return writer;
  LogWarning("a checkpoint does not say whose it is",
             {{"path", checkpoint.path()}, {"status", read}});
  return std::nullopt;
}

namespace {

// A job with other settings may not have kept the checkpoint that this one
// would roll back to, and a person may have removed it. It is made again from
// an earlier one; without that the job would begin anew instead.
absl::Status CheckRollbackBase(const TrainingJob& job,
                               const CheckpointReader& newest) {
  const int64_t base = RollbackBase(job, newest.manifest().step);
  if (job.on_nonfinite != OnNonfinite::kRollback || base == 0) {
    return absl::OkStatus();
  }
  const std::string& root = job.checkpoint.directory;
  const absl::Status found = CheckpointUpTo(root, base).status();
  if (!absl::IsNotFound(found)) return found;
  return absl::FailedPreconditionError(absl::StrCat(
      "checkpoint.every_steps: a step that is not finite would lead back to ",
      CheckpointPath(root, base),
      ", which has not been kept, nor has an earlier one; expected one that "
      "divides ",
      newest.manifest().step, ", or another on_nonfinite than ROLLBACK"));
}

}  // namespace

absl::Status CheckIsThere(const TrainingJob& job, int64_t step) {
  if (step == 0) return absl::OkStatus();
  const std::string& root = job.checkpoint.directory;
  ASSIGN_OR_RETURN(const auto checkpoints, ListCheckpoints(root));
  if (!checkpoints.empty()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "checkpoint.directory: there is no checkpoint in '", root, "', and '",
      CheckpointPath(root, step),
      "' was there before; is its disk there? To begin anew, choose another "
      "folder"));
}

absl::StatusOr<int64_t> CheckToBegin(const TrainingJob& job, bool resume) {
  if (!resume) RETURN_IF_ERROR(CheckWithoutCheckpoints(job));
  ASSIGN_OR_RETURN(const auto own, LatestOfJob(job, Scrutiny::kQuick));
  if (own == nullptr) {
    RETURN_IF_ERROR(OpenInitial(job, Scrutiny::kQuick).status());
    return 0;
  }
  RETURN_IF_ERROR(CheckGoesOn(job, *own));
  RETURN_IF_ERROR(CheckResumable(job, *own));
  RETURN_IF_ERROR(CheckRollbackBase(job, *own));
  return own->manifest().step;
}

absl::StatusOr<ServableCheckpoint> OpenToServe(const std::string& directory) {
  ASSIGN_OR_RETURN(const auto reader, CheckpointReader::Open(directory));
  ASSIGN_OR_RETURN(ModelConfig model, ServableModel(*reader));
  ASSIGN_OR_RETURN(std::string canonical, CanonicalPath(directory));
  return ServableCheckpoint{.directory = directory,
                            .canonical = std::move(canonical),
                            .step = reader->manifest().step,
                            .model = std::move(model)};
}

absl::StatusOr<std::vector<TensorEntry>> EntriesFromProto(
    const v1::CheckpointWritten& written) {
  std::vector<TensorEntry> entries;
  for (const v1::TensorEntry& entry : written.tensors()) {
    if (entry.element_type() != v1::ELEMENT_TYPE_FLOAT32) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", entry.name(), "': expected f32"));
    }
    entries.push_back({.name = entry.name(),
                       .file = entry.file(),
                       .type = ElementType::kFloat32,
                       .dims = Dims(entry.dims().begin(), entry.dims().end()),
                       .sha256 = entry.sha256()});
  }
  return entries;
}

}  // namespace gshard
