#include "services/config/training_job.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/config/model_config_fields.h"
#include "services/config/text_proto.h"
#include "services/config/training_job_proto.h"

namespace gshard {

constexpr int64_t kMaxSteps = 1'000'000'000;
constexpr int64_t kMaxMembers = 65536;

// Not in an anonymous namespace: visitors find these by ADL.

template <typename Visitor, Is<TextFile> Struct>
void VisitFields(Visitor& visitor, Struct& file) {
  visitor.Text("path", file.path, TextKind::kPath, Presence::kRequired);
  visitor.Text("language", file.language, TextKind::kLanguage,
               Presence::kOptional);
  visitor.Real("weight", file.weight, Interval::Positive(1e6));
}

template <typename Visitor, Is<TrainingData> Struct>
void VisitFields(Visitor& visitor, Struct& data) {
  visitor.Text("train_path", data.train_path, TextKind::kPath,
               Presence::kOptional);
  visitor.Text("dev_path", data.dev_path, TextKind::kPath, Presence::kOptional);
  visitor.Text("source_tokenizer_path", data.source_tokenizer_path,
               TextKind::kPath, Presence::kOptional);
  visitor.Text("target_tokenizer_path", data.target_tokenizer_path,
               TextKind::kPath, Presence::kOptional);
  visitor.Text("default_language", data.default_language, TextKind::kLanguage,
               Presence::kOptional);
  visitor.Groups("train_files", data.train_files, kMaxTextFiles);
  visitor.Real("sampling_temperature", data.sampling_temperature,
               Interval::Closed(1, 1000));
  visitor.Groups("dev_files", data.dev_files, kMaxTextFiles);
}

template <typename Visitor, Is<AdafactorConfig> Struct>
void VisitFields(Visitor& visitor, Struct& adafactor) {
  visitor.Real("decay_exponent", adafactor.decay_exponent,
               Interval::Positive(1));
  visitor.Real("clipping_threshold", adafactor.clipping_threshold,
               Interval::Positive(1e6));
  visitor.Real("epsilon1", adafactor.epsilon1, Interval::Closed(1e-37, 1));
  visitor.Real("epsilon2", adafactor.epsilon2, Interval::Positive(1));
  visitor.Bool("multiply_by_parameter_scale",
               adafactor.multiply_by_parameter_scale);
  visitor.Integer("min_dim_size_to_factor", adafactor.min_dim_size_to_factor, 1,
                  kMaxWidth);
}

template <typename Visitor, Is<AdamConfig> Struct>
void VisitFields(Visitor& visitor, Struct& adam) {
  visitor.Real("beta1", adam.beta1, Interval::Rate());
  visitor.Real("beta2", adam.beta2, Interval::Rate());
  // Not 0 as a float.
  visitor.Real("epsilon", adam.epsilon, Interval::Closed(1e-37, 1));
  visitor.Real("weight_decay", adam.weight_decay, Interval::Closed(0, 1));
}

template <typename Visitor, Is<LearningRateSchedule> Struct>
void VisitFields(Visitor& visitor, Struct& schedule) {
  visitor.Real("multiplier", schedule.multiplier, Interval::Positive(1e6));
  visitor.Integer("warmup_steps", schedule.warmup_steps, 1, kMaxSteps);
  visitor.Bool("linear_warmup", schedule.linear_warmup);
  visitor.Integer("cooldown_steps", schedule.cooldown_steps, 0, kMaxSteps);
}

template <typename Visitor, Is<CheckpointPolicy> Struct>
void VisitFields(Visitor& visitor, Struct& checkpoint) {
  visitor.Text("directory", checkpoint.directory, TextKind::kPath,
               Presence::kRequired);
  visitor.Integer("every_steps", checkpoint.every_steps, 0, kMaxSteps);
  visitor.Integer("keep", checkpoint.keep, 1, 1000);
  visitor.Integer("keep_best", checkpoint.keep_best, 0, 1000);
  visitor.Bool("asynchronous", checkpoint.asynchronous);
}

template <typename Visitor, Is<RecoveryPolicy> Struct>
void VisitFields(Visitor& visitor, Struct& recovery) {
  visitor.Integer("max_recoveries", recovery.max_recoveries, 0, 1'000'000);
  visitor.Integer("replacement_wait_ms", recovery.replacement_wait_ms, 0,
                  3'600'000);
  visitor.Bool("buddies", recovery.buddies);
}

// For messages with the oneof `optimizer`.
template <typename Visitor, Is<OptimizerConfig> Struct>
void VisitOptimizer(Visitor& visitor, Struct& optimizer) {
  visitor.template Alternative<AdafactorConfig>("adafactor", optimizer);
  visitor.template Alternative<AdamConfig>("adam", optimizer);
}

template <typename Visitor, Is<ValidationPolicy> Struct>
void VisitFields(Visitor& visitor, Struct& validation) {
  visitor.Integer("every_steps", validation.every_steps, 0, kMaxSteps);
  visitor.Integer("max_sentences", validation.max_sentences, 0,
                  std::numeric_limits<int32_t>::max());
}

template <typename Visitor, Is<TrainingJob> Struct>
void VisitFields(Visitor& visitor, Struct& job) {
  visitor.Text("name", job.name, TextKind::kName, Presence::kRequired);
  visitor.Group("model", job.model);
  visitor.Group("data", job.data);
  visitor.Integer("seed", job.seed, 0, std::numeric_limits<int64_t>::max());
  visitor.Integer("steps", job.steps, 1, kMaxSteps);
  visitor.Integer("microbatches_per_step", job.microbatches_per_step, 1, 65536);
  visitor.Integer("tokens_per_microbatch", job.tokens_per_microbatch, 1,
                  1 << 24);
  // A source has its tag, a piece and the end mark.
  visitor.Integer("max_length", job.max_length, 3, 65536);
  VisitOptimizer(visitor, job.optimizer);
  visitor.Group("schedule", job.schedule);
  visitor.Real("label_smoothing", job.label_smoothing, Interval::Rate());
  visitor.Real("vocabulary_z_loss", job.vocabulary_z_loss,
               Interval::Closed(0, 100));
  visitor.Real("clip_norm", job.clip_norm, Interval::Closed(0, 1e9));
  visitor.Group("checkpoint", job.checkpoint);
  visitor.Integer("min_routers", job.min_routers, 1, kMaxMembers);
  visitor.Integer("min_workers", job.min_workers, 1, kMaxMembers);
  visitor.Text("serve_as", job.serve_as, TextKind::kName, Presence::kOptional);
  visitor.Text("summary_directory", job.summary_directory, TextKind::kPath,
               Presence::kOptional);
  visitor.Integer("progress_every_steps", job.progress_every_steps, 1,
                  kMaxSteps);
  visitor.Integer("time_limit_seconds", job.time_limit_seconds, 0, kMaxSteps);
  visitor.Enum("on_nonfinite", job.on_nonfinite,
               v1::TrainingJob::OnNonfinite_descriptor());
  visitor.Group("recovery", job.recovery);
  visitor.Group("validation", job.validation);
  visitor.Text("initialize_from", job.initialize_from, TextKind::kPath,
               Presence::kOptional);
}

std::vector<TextFile> AllFiles(const std::string& path,
                               const std::vector<TextFile>& more,
                               const std::string& default_language) {
  std::vector<TextFile> files;
  if (!path.empty()) files.emplace_back().path = path;
  files.insert(files.end(), more.begin(), more.end());
  for (TextFile& file : files) {
    if (file.language.empty()) file.language = default_language;
  }
  return files;
}

std::vector<TextFile> TrainFiles(const TrainingData& data) {
  return AllFiles(data.train_path, data.train_files, data.default_language);
}

std::vector<TextFile> DevFiles(const TrainingData& data) {
  return AllFiles(data.dev_path, data.dev_files, data.default_language);
}

std::vector<std::pair<std::string, std::string*>> PathsOf(TrainingJob* job) {
  std::vector<std::pair<std::string, std::string*>> paths = {
      {"data.train_path", &job->data.train_path},
      {"data.dev_path", &job->data.dev_path},
      {"data.source_tokenizer_path", &job->data.source_tokenizer_path},
      {"data.target_tokenizer_path", &job->data.target_tokenizer_path},
      {"checkpoint.directory", &job->checkpoint.directory},
      {"summary_directory", &job->summary_directory},
      {"initialize_from", &job->initialize_from}};
  for (TextFile& file : job->data.train_files) {
    paths.emplace_back("data.train_files", &file.path);
  }
  for (TextFile& file : job->data.dev_files) {
    paths.emplace_back("data.dev_files", &file.path);
  }
  return paths;
}

absl::Status ValidateTrainingJob(const TrainingJob& job) {
  FieldChecker checker;
  VisitFields(checker, job);
  RETURN_IF_ERROR(checker.status());
  if (job.data.train_path.empty() && job.data.train_files.empty()) {
    return absl::InvalidArgumentError(
        "data.train_path: expected a value, or train_files, got nothing");
  }
  if (absl::Status model = ValidateModelConfig(job.model); !model.ok()) {
    return absl::Status(model.code(), absl::StrCat("model.", model.message()));
  }
  if (job.model.compute_type == ComputeType::kInt8) {
    return absl::InvalidArgumentError(
        "model.compute_type: expected FLOAT32 or BFLOAT16 to train, got INT8; "
        "load the trained model with that type of weights");
  }
  if (job.max_length > job.model.max_positions) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_length: expected at most model.max_positions, which "
                     "is ",
                     job.model.max_positions, ", got ", job.max_length));
  }
  if (job.tokens_per_microbatch < job.max_length) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokens_per_microbatch: expected at least max_length, "
                     "which is ",
                     job.max_length, ", got ", job.tokens_per_microbatch));
  }
  if (job.schedule.cooldown_steps > job.steps) {
    return absl::InvalidArgumentError(absl::StrCat(
        "schedule.cooldown_steps: expected at most steps, which is ", job.steps,
        ", got ", job.schedule.cooldown_steps));
  }
  if (job.model.shared_vocabulary && !job.data.target_tokenizer_path.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.target_tokenizer_path: expected nothing, as "
                     "model.shared_vocabulary is set, got \"",
                     job.data.target_tokenizer_path, "\""));
  }
  if (job.initialize_from.empty()) return absl::OkStatus();
  for (const std::string& path :
       {job.data.source_tokenizer_path, job.data.target_tokenizer_path}) {
    if (path.empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "data: expected no tokenizers, as initialize_from has its own, got \"",
        path, "\""));
  }
  return absl::OkStatus();
}

absl::StatusOr<TrainingJob> TrainingJobFromProto(
    const v1::TrainingJob& message) {
  TrainingJob job;
  FieldReader reader(message);
  VisitFields(reader, job);
  RETURN_IF_ERROR(ValidateTrainingJob(job));
  return job;
}

v1::TrainingJob TrainingJobToProto(const TrainingJob& job) {
  v1::TrainingJob message;
  FieldWriter writer(&message);
  VisitFields(writer, job);
  return message;
}

absl::StatusOr<OptimizerConfig> OptimizerConfigFromProto(
    const v1::ExpertOptimizer& message) {
  OptimizerConfig config;
  FieldReader reader(message);
  VisitOptimizer(reader, config);
  FieldChecker checker;
  VisitOptimizer(checker, config);
  RETURN_IF_ERROR(checker.status());
  return config;
}

v1::ExpertOptimizer OptimizerConfigToProto(const OptimizerConfig& config) {
  v1::ExpertOptimizer message;
  FieldWriter writer(&message);
  VisitOptimizer(writer, config);
  return message;
}

absl::StatusOr<TrainingJob> ParseTrainingJob(absl::string_view text,
                                             UnknownFields unknown) {
  v1::TrainingJob message;
  RETURN_IF_ERROR(ParseTextProto(text, &message, unknown));
  return TrainingJobFromProto(message);
}

std::string TrainingJobToText(const TrainingJob& job) {
  return PrintTextProto(TrainingJobToProto(job));
}

absl::StatusOr<TrainingJob> LoadTrainingJob(absl::string_view path) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  absl::StatusOr<TrainingJob> job = ParseTrainingJob(text);
  if (!job.ok()) return Annotate(job.status(), path);
  return job;
}

}  // namespace gshard
