// TrainingJob: a validated description of a training job.
//
// proto/gshard/v1/job.proto is its form in files and on the wire; comments
// there say what each field means and give the ranges. This struct mirrors it
// without protobuf, and its initializers are the defaults.

#ifndef SERVICES_CONFIG_TRAINING_JOB_H_
#define SERVICES_CONFIG_TRAINING_JOB_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/config/model_config.h"
#include "services/config/text_proto.h"

namespace gshard {

// A file of parallel text.
struct TextFile {
  std::string path;      // required
  std::string language;  // for lines with two columns; empty: the default
  double weight = 1.0;   // how often its pairs come, relative to others

  bool operator==(const TextFile&) const = default;
};

// The most train_files, and the most dev_files.
inline constexpr size_t kMaxTextFiles = 65535;

// Files of tab-separated language, source, target.
struct TrainingData {
  std::string train_path;             // required without train_files
  std::string dev_path;               // empty: none
  std::string source_tokenizer_path;  // empty: trained from the text
  std::string target_tokenizer_path;  // empty: trained, or shared
  std::string default_language;       // empty: requests must name one
  std::vector<TextFile> train_files;  // after train_path
  double sampling_temperature = 1.0;  // for languages
  std::vector<TextFile> dev_files;    // after dev_path

  bool operator==(const TrainingData&) const = default;
};

// All training files, and all held-out ones, in order, with their languages
// filled in.
std::vector<TextFile> TrainFiles(const TrainingData& data);
std::vector<TextFile> DevFiles(const TrainingData& data);

// Decay of the second moment at step t, from 1, is 1 - t^-decay_exponent.
struct AdafactorConfig {
  double decay_exponent = 0.8;
  double clipping_threshold = 1.0;  // maximum RMS of an update
  double epsilon1 = 1e-30;          // added to squared gradients
  double epsilon2 = 1e-3;           // minimum scale of a parameter
  bool multiply_by_parameter_scale = true;
  int64_t min_dim_size_to_factor = 128;

  bool operator==(const AdafactorConfig&) const = default;
};

struct AdamConfig {
  double beta1 = 0.9;
  double beta2 = 0.98;
  double epsilon = 1e-9;
  double weight_decay = 0.0;  // decoupled

  bool operator==(const AdamConfig&) const = default;
};

using OptimizerConfig = std::variant<AdafactorConfig, AdamConfig>;

// At step t, from 1: multiplier / sqrt(max(t, warmup_steps)), and with
// linear_warmup also times min(1, t / warmup_steps). In the last cooldown_steps
// of the job it falls to 0.
struct LearningRateSchedule {
  double multiplier = 1.0;
  int64_t warmup_steps = 10000;
  bool linear_warmup = false;
  int64_t cooldown_steps = 0;  // at most the job's steps

  bool operator==(const LearningRateSchedule&) const = default;
};

struct CheckpointPolicy {
  std::string directory;       // required
  int64_t every_steps = 1000;  // 0: after the last step only
  int64_t keep = 3;            // the newest
  int64_t keep_best = 1;       // by validation loss
  bool asynchronous = true;    // training continues meanwhile

  bool operator==(const CheckpointPolicy&) const = default;
};

// What to do with a step whose loss or gradient is not finite.
enum class OnNonfinite { kStop, kSkip, kRollback };

// How a job continues after the loss of an expert worker.
struct RecoveryPolicy {
  int64_t max_recoveries = 10;         // without progress
  int64_t replacement_wait_ms = 2000;  // before others take over
  bool buddies = false;                // workers replicate each other

  bool operator==(const RecoveryPolicy&) const = default;
};

// When the loss on held-out pairs is measured.
struct ValidationPolicy {
  int64_t every_steps = 0;    // 0: with checkpoints only
  int64_t max_sentences = 0;  // 0: all

  bool operator==(const ValidationPolicy&) const = default;
};

struct TrainingJob {
  std::string name;  // required
  ModelConfig model;
  TrainingData data;

  int64_t seed = 1;
  int64_t steps = 100000;
  int64_t microbatches_per_step = 4;
  int64_t tokens_per_microbatch = 4096;  // padding included
  int64_t max_length = 256;              // pieces, tag and end mark included

  OptimizerConfig optimizer = AdafactorConfig();
  LearningRateSchedule schedule;
  double label_smoothing = 0.1;
  double vocabulary_z_loss = 1e-4;
  double clip_norm = 0.0;  // 0: never clipped

  CheckpointPolicy checkpoint;

  int64_t min_routers = 1;  // members to wait for before the first step
  int64_t min_workers = 1;
  std::string serve_as;           // empty: not served
  std::string summary_directory;  // empty: no event files
  int64_t progress_every_steps = 100;
  int64_t time_limit_seconds = 0;  // 0: none
  OnNonfinite on_nonfinite = OnNonfinite::kStop;
  RecoveryPolicy recovery;
  ValidationPolicy validation;
  std::string initialize_from;  // a checkpoint; empty: weights by seed

  bool operator==(const TrainingJob&) const = default;
};

// Every path in the job, empty ones included, with the name of its field;
// without the index in a list, since patterns become several files.
std::vector<std::pair<std::string, std::string*>> PathsOf(TrainingJob* job);

// As ValidateModelConfig; fields of the model are named "model.experts". Does
// not access the files named in the job.
absl::Status ValidateTrainingJob(const TrainingJob& job);

// As ParseModelConfig.
absl::StatusOr<TrainingJob> ParseTrainingJob(
    absl::string_view text, UnknownFields unknown = UnknownFields::kMistakes);

// As ModelConfigToText.
std::string TrainingJobToText(const TrainingJob& job);

// As LoadModelConfig.
absl::StatusOr<TrainingJob> LoadTrainingJob(absl::string_view path);

}  // namespace gshard

#endif  // SERVICES_CONFIG_TRAINING_JOB_H_
