#include "services/config/training_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "services/config/training_job_proto.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

// The required fields alone.
constexpr char kLeast[] =
    "name: \"demo\" data { train_path: \"train.tsv\" } "
    "checkpoint { directory: \"out\" }";

TrainingJob LeastJob() {
  TrainingJob job;
  job.name = "demo";
  job.data.train_path = "train.tsv";
  job.checkpoint.directory = "out";
  return job;
}

// No field has its default, but for initialize_from, which excludes others.
TrainingJob UnusualJob() {
  TrainingJob job;
  job.name = "unusual";
  job.model.experts = 64;
  job.model.gate.literal = true;
  job.data = {"a b/\"train\".tsv",
              "dev\xc3\xa9.tsv",
              "s.model",
              "t.model",
              "pt_BR",
              {{"more.tsv", "de", 0.5}, {"other.tsv", "", 2.0}},
              5.0,
              {{"held-out.tsv", "fr", 1.0}}};
  job.seed = std::numeric_limits<int64_t>::max();
  job.steps = 17;
  job.microbatches_per_step = 3;
  job.tokens_per_microbatch = 999;
  job.max_length = 64;
  job.optimizer = AdamConfig{0.8, 0.95, 1e-7, 0.01};
  job.schedule = {0.044, 400, true, 6};
  job.label_smoothing = 0.2;
  job.vocabulary_z_loss = 0.0;
  job.clip_norm = 1.0;
  job.checkpoint = {"there", 0, 7, 2, false};
  job.min_routers = 2;
  job.min_workers = 4;
  job.serve_as = "de-en";
  job.summary_directory = "summaries";
  job.progress_every_steps = 10;
  job.time_limit_seconds = 480;
  job.on_nonfinite = OnNonfinite::kRollback;
  job.recovery = {3, 250, true};
  job.validation = {50, 1000};
  return job;
}

TEST(TrainingJobTest, FillsInDefaults) {
  ASSERT_OK_AND_ASSIGN(const TrainingJob job, ParseTrainingJob(kLeast));
  EXPECT_EQ(job, LeastJob());
  EXPECT_TRUE(std::holds_alternative<AdafactorConfig>(job.optimizer));
}

TEST(TrainingJobTest, ReadsBackWhatItPrints) {
  TrainingJob adafactor = LeastJob();
  adafactor.optimizer = AdafactorConfig{0.7, 2.0, 1e-20, 1e-4, false, 16};
  TrainingJob tuning = LeastJob();
  tuning.initialize_from = "general/checkpoints";
  for (const TrainingJob& job : {LeastJob(), UnusualJob(), adafactor, tuning}) {
    const std::string text = TrainingJobToText(job);
    SCOPED_TRACE(text);
    ASSERT_OK_AND_ASSIGN(const TrainingJob again, ParseTrainingJob(text));
    EXPECT_EQ(again, job);
  }
}

// A field that is in the message but not in the struct fails this test.
TEST(TrainingJobTest, PrintsEveryFieldOfTheMessage) {
  const auto expect_all_set = [](const google::protobuf::Message& group) {
    const auto* descriptor = group.GetDescriptor();
    for (int i = 0; i < descriptor->field_count(); ++i) {
      const auto* field = descriptor->field(i);
      if (field->real_containing_oneof() != nullptr) continue;
      if (field->is_repeated()) {
        EXPECT_GT(group.GetReflection()->FieldSize(group, field), 0)
            << field->full_name();
        continue;
      }
      EXPECT_TRUE(group.GetReflection()->HasField(group, field))
          << field->full_name();
    }
  };
  TrainingJob job = UnusualJob();
  job.optimizer = AdafactorConfig();
  const v1::TrainingJob message = TrainingJobToProto(job);
  expect_all_set(message);
  expect_all_set(message.data());
  expect_all_set(message.data().train_files(0));
  expect_all_set(message.validation());
  expect_all_set(message.adafactor());
  expect_all_set(message.schedule());
  expect_all_set(message.checkpoint());
  expect_all_set(message.recovery());
  job.optimizer = AdamConfig();
  expect_all_set(TrainingJobToProto(job).adam());
}

TEST(TrainingJobTest, ReadsAnOptimizerByItsName) {
  ASSERT_OK_AND_ASSIGN(
      const TrainingJob job,
      ParseTrainingJob(absl::StrCat(kLeast, " adam { beta2: 0.999 }")));
  ASSERT_TRUE(std::holds_alternative<AdamConfig>(job.optimizer));
  EXPECT_EQ(std::get<AdamConfig>(job.optimizer).beta2, 0.999);
  EXPECT_EQ(std::get<AdamConfig>(job.optimizer).beta1, 0.9);
  EXPECT_THAT(
      ParseTrainingJob(absl::StrCat(kLeast, " adam {} adafactor {}")),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("adafactor")));
}

TEST(TrainingJobTest, ListsAllFilesWithTheirLanguages) {
  TrainingData data;
  data.train_files = {{"b", "", 1.0}, {"c", "fr", 3.0}};
  data.default_language = "de";
  EXPECT_EQ(TrainFiles(data),
            (std::vector<TextFile>{{"b", "de", 1.0}, {"c", "fr", 3.0}}));
  data.train_path = "a";
  EXPECT_EQ(TrainFiles(data).front(), (TextFile{"a", "de", 1.0}));
  EXPECT_EQ(DevFiles(data), std::vector<TextFile>());
  data.dev_path = "d";
  data.dev_files = data.train_files;
  EXPECT_EQ(DevFiles(data).size(), 3u);
}

TEST(TrainingJobTest, ChecksFilesOfText) {
  const auto expect = [](const std::string& data, const std::string& message) {
    EXPECT_THAT(
        ParseTrainingJob(absl::StrCat("name: 'x' checkpoint { directory: 'out' "
                                      "} data { ",
                                      data, " }")),
        StatusIs(absl::StatusCode::kInvalidArgument, message));
  };
  expect("train_files { path: 'a' weight: 0 }",
         "data.train_files[0].weight: expected above 0 and at most 1e+06, got "
         "0");
  expect("train_files { path: 'a' } train_files { language: 'de' }",
         "data.train_files[1].path: expected a value, got nothing");
  expect("train_files { path: 'a' } sampling_temperature: 0.5",
         "data.sampling_temperature: expected 1 to 1000, got 0.5");
  const std::string language =
      ": expected 1 to 32 letters, digits, '_', '-' or '@', not s, pad or "
      "unk, got ";
  expect("train_files { path: 'a' language: 'zh.Hans' }",
         "data.train_files[0].language" + language + "\"zh.Hans\"");
  for (const std::string& name : {std::string(33, 'a'), std::string("pad")}) {
    expect("train_path: 'a' default_language: '" + name + "'",
           "data.default_language" + language + "\"" + name + "\"");
  }
  TrainingJob job = LeastJob();
  job.data.default_language = "sr@latin";
  EXPECT_OK(ValidateTrainingJob(job));
  job.data.dev_files.resize(65536, {"a", "", 1.0});
  EXPECT_THAT(ValidateTrainingJob(job),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "data.dev_files: expected at most 65535, got 65536"));
}

TEST(TrainingJobTest, InsistsOnWhatHasNoDefault) {
  EXPECT_THAT(ParseTrainingJob(""),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "name: expected a value, got nothing"));
  TrainingJob job = LeastJob();
  job.data.train_path = "";
  EXPECT_THAT(ValidateTrainingJob(job),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "data.train_path: expected a value, or train_files, got "
                       "nothing"));
  job = LeastJob();
  job.checkpoint.directory = "";
  EXPECT_THAT(ValidateTrainingJob(job),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "checkpoint.directory: expected a value, got nothing"));
}

TEST(TrainingJobTest, NamesTheFieldTheRangeAndTheValue) {
  const struct {
    const char* text;
    const char* message;
  } cases[] = {
      {"seed: -1", "seed: expected 0 to 9223372036854775807, got -1"},
      {"steps: 0", "steps: expected 1 to 1000000000, got 0"},
      {"label_smoothing: 1",
       "label_smoothing: expected at least 0 and less than 1, got 1"},
      {"adam { epsilon: 0 }", "adam.epsilon: expected 1e-37 to 1, got 0"},
      {"adam { epsilon: 1e-50 }",
       "adam.epsilon: expected 1e-37 to 1, got 1e-50"},
      {"schedule { multiplier: 0 }",
       "schedule.multiplier: expected above 0 and at most 1e+06, got 0"},
      {"validation { max_sentences: 2147483648 }",
       "validation.max_sentences: expected 0 to 2147483647, got 2147483648"},
      {"min_workers: 0", "min_workers: expected 1 to 65536, got 0"},
      {"model { gate { group_size: -1 } }",
       "model.gate.group_size: expected 0 to 1048576, got -1"},
      {"model { experts: 1 }",
       "model.experts: expected 0 (dense) or 2 to 2048, as each token has two "
       "choices, got 1"},
      {"model { compute_type: INT8 }",
       "model.compute_type: expected FLOAT32 or BFLOAT16 to train, got INT8; "
       "load the trained model with that type of weights"},
      {"steps: 10 schedule { cooldown_steps: 11 }",
       "schedule.cooldown_steps: expected at most steps, which is 10, got 11"},
      {"max_length: 2", "max_length: expected 3 to 65536, got 2"},
      {"max_length: 1025",
       "max_length: expected at most model.max_positions, which is 1024, got "
       "1025"},
      {"tokens_per_microbatch: 255",
       "tokens_per_microbatch: expected at least max_length, which is 256, "
       "got 255"},
  };
  for (const auto& bad : cases) {
    EXPECT_THAT(ParseTrainingJob(absl::StrCat(kLeast, " ", bad.text)),
                StatusIs(absl::StatusCode::kInvalidArgument, bad.message));
  }
  TrainingJob job = LeastJob();
  for (const char* url : {"gs://b/run", "S3://b/run", "file:///run"}) {
    job.checkpoint.directory = url;
    EXPECT_THAT(
        ValidateTrainingJob(job),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 absl::StrCat("checkpoint.directory: expected a path of a "
                              "disk, or s3://bucket/path, got \"",
                              url, "\"")));
  }
  for (const char* path : {"s3://b/run", "://b", "/a://b", "a:/b//c"}) {
    job.checkpoint.directory = path;
    EXPECT_OK(ValidateTrainingJob(job));
  }
  job = LeastJob();
  job.model.shared_vocabulary = true;
  job.data.target_tokenizer_path = "t.model";
  EXPECT_THAT(ValidateTrainingJob(job),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("data.target_tokenizer_path: expected "
                                 "nothing")));
  job = LeastJob();
  job.initialize_from = "general/checkpoints";
  job.data.source_tokenizer_path = "s.model";
  EXPECT_THAT(ValidateTrainingJob(job),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "data: expected no tokenizers, as initialize_from has "
                       "its own, got \"s.model\""));
}

}  // namespace
}  // namespace gshard
