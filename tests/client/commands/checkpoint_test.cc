#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/commands.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "tests/client/command_run.h"
#include "tests/services/checkpoint/checkpoint_samples.h"
#include "tests/services/storage/scratch_directory.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

nlohmann::json Parsed(const std::string& text) {
  return nlohmann::json::parse(text, nullptr, false);
}

TEST(CheckpointInspectTest, SaysWhatIsInIt) {
  ScratchDirectory scratch;
  ASSERT_OK_AND_ASSIGN(const std::string path,
                       WriteCheckpoint(scratch.path(), 3, 2));
  const CommandRun run(CheckpointInspectCommand, {path + "/"});
  ASSERT_OK(run.status);
  EXPECT_THAT(run.out,
              AllOf(HasSubstr("step             3"), HasSubstr("experts: 7"),
                    HasSubstr("tokenizer.model"), HasSubstr("moe_0/wi/*"),
                    HasSubstr("f32[3, 4]"), HasSubstr("worker-1.safetensors")));
  const CommandRun json(CheckpointInspectCommand, {path, "--json"});
  ASSERT_OK(json.status);
  const nlohmann::json value = Parsed(json.out);
  EXPECT_EQ(value["tensors"], 8);
  EXPECT_EQ(value["bytes"], 4 * (5 + 7 * 12));
  EXPECT_EQ(value["groups"].size(), 2u);
  EXPECT_EQ(value["shards"].size(), 3u);
}

TEST(CheckpointInspectTest, ListsAFolder) {
  ScratchDirectory scratch;
  for (const int64_t step : {1, 2, 3, 4}) {
    ASSERT_OK_AND_ASSIGN(const auto entries,
                         WriteShards(scratch.path(), step, 1));
    Manifest manifest = ManifestOf(step, entries);
    manifest.validation_loss = step == 2 ? 0.5 : 1.5;
    ASSERT_OK(CommitCheckpoint(scratch.path(), manifest, "pieces"));
  }
  Spill(scratch / "step-00000004/manifest.json", "");
  const CommandRun run(CheckpointInspectCommand, {scratch.path() + "/"});
  ASSERT_OK(run.status);
  EXPECT_THAT(run.out, AllOf(HasSubstr("newest\n"), HasSubstr("best\n"),
                             HasSubstr("damaged: ")));
  const CommandRun json(CheckpointInspectCommand, {scratch.path(), "--json"});
  const nlohmann::json value = Parsed(json.out);
  ASSERT_EQ(value.size(), 4u);
  EXPECT_EQ(value[0]["state"], "damaged");
  EXPECT_EQ(value[1]["best"], false);
  EXPECT_EQ(value[2]["best"], true);
  EXPECT_EQ(value[2]["step"], 2);
}

TEST(CheckpointVerifyTest, NamesAllThatIsDamaged) {
  ScratchDirectory scratch;
  ASSERT_OK(WriteCheckpoint(scratch.path(), 1, 1));
  ASSERT_OK_AND_ASSIGN(const std::string path,
                       WriteCheckpoint(scratch.path(), 2, 3));
  const CommandRun sound(CheckpointVerifyCommand, {scratch.path()});
  ASSERT_OK(sound.status);
  EXPECT_THAT(sound.out, AllOf(HasSubstr("step-00000001: sound"),
                               HasSubstr("step-00000002: sound")));
  for (const char* file :
       {"worker-0.safetensors", "worker-2.safetensors", "tokenizer.model"}) {
    const std::string name = absl::StrCat(path, "/", file);
    Poke(name, Slurp(name).size() - 1, '?');
  }
  const CommandRun run(CheckpointVerifyCommand, {scratch.path()});
  EXPECT_THAT(run.status, StatusIs(absl::StatusCode::kDataLoss,
                                   HasSubstr("1 of 2 checkpoints")));
  EXPECT_FALSE(IsUsageError(run.status));
  EXPECT_THAT(
      run.out,
      AllOf(HasSubstr("step-00000001: sound"),
            HasSubstr("step-00000002: DAMAGED"),
            HasSubstr("tensor 'moe_0/wi/6'"), HasSubstr("tensor 'moe_0/wi/5'"),
            HasSubstr("tokenizer.model"), Not(HasSubstr("wi/1"))));
  const CommandRun json(CheckpointVerifyCommand, {scratch.path(), "--json"});
  EXPECT_FALSE(json.status.ok());
  EXPECT_EQ(Parsed(json.out)[0]["problems"].size(), 3u);
}

// Calls a function whenever the stream is flushed.
class FlushedBuffer : public std::stringbuf {
 public:
  explicit FlushedBuffer(std::function<void()> flushed)
      : flushed_(std::move(flushed)) {}

 protected:
  int sync() override {
    flushed_();
    return 0;
  }

 private:
  const std::function<void()> flushed_;
};

// Its owner goes on with its folder.
TEST(CheckpointVerifyTest, OneThatIsPrunedMeanwhileIsNotDamaged) {
  ScratchDirectory scratch;
  for (const int64_t step : {1, 2}) {
    ASSERT_OK(WriteCheckpoint(scratch.path(), step, 1));
  }
  FlushedBuffer buffer(
      [&] { EXPECT_OK(PruneCheckpoints(scratch.path(), {.last = 1})); });
  std::ostream out(&buffer);
  std::ostringstream error;
  Console console{-1, &out, &error,
                  [](const char*) -> const char* { return nullptr; }};
  EXPECT_OK(CheckpointVerifyCommand({scratch.path()}, console));
  EXPECT_THAT(buffer.str(), AllOf(HasSubstr("step-00000002: sound\n"),
                                  HasSubstr("step-00000001: removed "
                                            "meanwhile\n"),
                                  Not(HasSubstr("DAMAGED"))));
}

// A folder without a manifest was no checkpoint that somebody removed.
TEST(CheckpointVerifyTest, OneThatLacksItsManifestIsDamaged) {
  ScratchDirectory scratch;
  ASSERT_OK_AND_ASSIGN(const std::string path,
                       WriteCheckpoint(scratch.path(), 1, 1));
  ASSERT_OK(RemoveTree(path + "/manifest.json"));
  const CommandRun run(CheckpointVerifyCommand, {scratch.path()});
  EXPECT_THAT(run.status, StatusIs(absl::StatusCode::kDataLoss,
                                   HasSubstr("1 of 1 checkpoints")));
}

TEST(CheckpointVerifyTest, OneThatCannotBeReadIsNotDamaged) {
  ScratchDirectory scratch;
  ASSERT_OK(WriteCheckpoint(scratch.path(), 1, 1));
  ASSERT_OK_AND_ASSIGN(const std::string path,
                       WriteCheckpoint(scratch.path(), 2, 1));
  ASSERT_OK(RemoveTree(path + "/router.safetensors"));
  ASSERT_OK(MakeDirectories(path + "/router.safetensors"));
  const CommandRun run(CheckpointVerifyCommand, {scratch.path()});
  EXPECT_THAT(run.status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                   HasSubstr("not a regular file")));
  EXPECT_THAT(run.out, AllOf(HasSubstr("step-00000001: sound\n"),
                             HasSubstr("step-00000002: cannot be read\n"),
                             HasSubstr("not a regular file"),
                             Not(HasSubstr("DAMAGED"))));
  const CommandRun json(CheckpointVerifyCommand, {scratch.path(), "--json"});
  const nlohmann::json value = Parsed(json.out);
  EXPECT_EQ(value[0]["state"], "cannot be read");
  EXPECT_EQ(value[0]["problems"].size(), 0u);
  EXPECT_EQ(value[1]["state"], "sound");
  const CommandRun inspect(CheckpointInspectCommand, {scratch.path()});
  ASSERT_OK(inspect.status);
  EXPECT_THAT(inspect.out,
              AllOf(HasSubstr("cannot be read: "), Not(HasSubstr("damaged"))));
}

// It may be there all the same.
TEST(CheckpointVerifyTest, WhatCannotBeLookedAtIsNotAbsent) {
  ScratchDirectory scratch;
  std::filesystem::create_symlink("manifest.json", scratch / "manifest.json");
  for (const auto command :
       {CheckpointInspectCommand, CheckpointVerifyCommand}) {
    EXPECT_THAT(
        CommandRun(command, {scratch.path()}).status,
        StatusIs(absl::StatusCode::kUnavailable, HasSubstr("/manifest.json")));
  }
}

// JSON has no text but UTF-8.
TEST(CheckpointCommandsTest, PathsMayBeAnyBytes) {
  ScratchDirectory scratch;
  const std::string root = scratch / "\xFF";
  ASSERT_OK_AND_ASSIGN(const std::string path, WriteCheckpoint(root, 1, 1));
  for (const std::string& argument : {root, path}) {
    for (const auto command :
         {CheckpointInspectCommand, CheckpointVerifyCommand}) {
      const CommandRun run(command, {argument, "--json"});
      ASSERT_OK(run.status);
      EXPECT_FALSE(Parsed(run.out).is_discarded()) << run.out;
      EXPECT_THAT(run.out, HasSubstr("/\xEF\xBF\xBD"));
    }
  }
  const CommandRun diff(CheckpointDiffCommand, {path, path, "--json"});
  ASSERT_OK(diff.status);
  EXPECT_FALSE(Parsed(diff.out).is_discarded());
}

TEST(CheckpointDiffTest, EqualTensorsInOtherShardsAreIdentical) {
  ScratchDirectory one, two;
  ASSERT_OK(WriteCheckpoint(one.path(), 1, 2));
  ASSERT_OK(WriteCheckpoint(two.path(), 1, 5));
  const CommandRun run(CheckpointDiffCommand, {one.path(), two.path()});
  ASSERT_OK(run.status);
  EXPECT_EQ(run.out, "identical: 8 tensors\n");
}

TEST(CheckpointDiffTest, SaysWhatDiffersAndFails) {
  ScratchDirectory scratch;
  ASSERT_OK_AND_ASSIGN(const std::string one,
                       WriteCheckpoint(scratch.path(), 1, 1));
  // Step 2 has a subset of the tensors, one new tensor, one changed shape and
  // one changed element.
  ASSERT_OK_AND_ASSIGN(
      const auto writer,
      CheckpointWriter::Create(scratch.path(), 2, "all",
                               {ExpertSpec(0),
                                ExpertSpec(1),
                                {"dense", ElementType::kFloat32, {6}},
                                {"new", ElementType::kFloat32, {1}}}));
  const Tensor was = ExpertWeight(1, 1);
  std::vector<float> values(was.f32(), was.f32() + 12);
  values[7] += 0.5f;
  ASSERT_OK(writer->Write(ExpertName(0), ExpertWeight(0, 1)));
  ASSERT_OK(writer->Write(ExpertName(1), Tensor::Floats({3, 4}, values)));
  ASSERT_OK(writer->Write("dense", RandomTensor({6}, 1)));
  ASSERT_OK(writer->Write("new", RandomTensor({1}, 1)));
  ASSERT_OK_AND_ASSIGN(const auto entries, writer->Finish());
  ASSERT_OK_AND_ASSIGN(
      const std::string two,
      CommitCheckpoint(scratch.path(), ManifestOf(2, entries), "pieces"));
  const CommandRun run(CheckpointDiffCommand, {one, two});
  EXPECT_THAT(run.status,
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("different: 8 of 9 tensors, 1 fields")));
  EXPECT_FALSE(IsUsageError(run.status));
  EXPECT_THAT(
      run.out,
      AllOf(HasSubstr("step: 1 and 2"),
            HasSubstr("1 of 12 elements, first at 7: "),
            HasSubstr("f32[5] and f32[6]"), HasSubstr("only in the first"),
            HasSubstr("only in the second"), Not(HasSubstr("wi/0"))));
  const CommandRun json(CheckpointDiffCommand,
                        {one, two, "--json", "--limit", "2"});
  const nlohmann::json value = Parsed(json.out);
  EXPECT_EQ(value["identical"], false);
  EXPECT_EQ(value["different"], 8);
  ASSERT_EQ(value["differences"].size(), 2u);
  EXPECT_EQ(value["differences"][1]["name"], "moe_0/wi/1");
  EXPECT_EQ(value["differences"][1]["first"], 7);
  EXPECT_NEAR(value["differences"][1]["max_abs"].get<double>(), 0.5, 1e-6);
}

TEST(CheckpointExportTest, WritesOnePlainFile) {
  ScratchDirectory scratch;
  ASSERT_OK(WriteCheckpoint(scratch / "checkpoints", 1, 3));
  const std::string file = scratch / "all.safetensors";
  const CommandRun run(CheckpointExportCommand,
                       {scratch / "checkpoints", file});
  ASSERT_OK(run.status);
  EXPECT_THAT(run.out, HasSubstr("wrote 8 tensors, 356 bytes"));
  ASSERT_OK_AND_ASSIGN(const auto reader, SafetensorsReader::Open(file));
  EXPECT_EQ(reader->tensors().size(), 8u);
  EXPECT_EQ(reader->metadata().at("step"), "1");
  for (int e = 0; e < kNumExperts; ++e) {
    ASSERT_OK_AND_ASSIGN(const Tensor tensor, reader->Read(ExpertName(e)));
    EXPECT_TRUE(TensorEqual(tensor, ExpertWeight(e, 1)));
  }
  EXPECT_THAT(
      CommandRun(CheckpointExportCommand, {scratch / "checkpoints", file})
          .status,
      StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("--overwrite")));
  ASSERT_OK(
      CommandRun(CheckpointExportCommand, {scratch / "checkpoints", file,
                                           "--overwrite", "--tensors", "dense"})
          .status);
  ASSERT_OK_AND_ASSIGN(const auto dense, SafetensorsReader::Open(file));
  EXPECT_EQ(dense->tensors().size(), 1u);
}

TEST(CheckpointExportTest, WhatCannotBeLookedAtIsNotThere) {
  ScratchDirectory scratch;
  ASSERT_OK(WriteCheckpoint(scratch / "checkpoints", 1, 1));
  Spill(scratch / "file", "");
  EXPECT_THAT(CommandRun(CheckpointExportCommand,
                         {scratch / "checkpoints", scratch / "file/x"})
                  .status,
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("Not a directory")));
}

TEST(CheckpointExportTest, ADamagedTensorLeavesNoFile) {
  ScratchDirectory scratch;
  ASSERT_OK_AND_ASSIGN(const std::string path,
                       WriteCheckpoint(scratch / "checkpoints", 1, 1));
  const std::string shard = path + "/worker-0.safetensors";
  Poke(shard, Slurp(shard).size() - 1, '?');
  const CommandRun run(CheckpointExportCommand, {path, scratch / "x"});
  EXPECT_THAT(run.status, StatusIs(absl::StatusCode::kDataLoss,
                                   HasSubstr("tensor 'moe_0/wi/6'")));
  ASSERT_OK_AND_ASSIGN(const auto names, ListDirectory(scratch.path()));
  EXPECT_EQ(names, std::vector<std::string>{"checkpoints"});
}

TEST(CheckpointCommandsTest, WrongCallsAreUsageErrors) {
  EXPECT_TRUE(IsUsageError(CommandRun(CheckpointInspectCommand, {}).status));
  EXPECT_TRUE(IsUsageError(CommandRun(CheckpointDiffCommand, {"a"}).status));
  for (const auto command :
       {CheckpointInspectCommand, CheckpointVerifyCommand}) {
    const CommandRun run(command, {"/none"});
    EXPECT_THAT(run.status,
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("/none")));
    EXPECT_FALSE(IsUsageError(run.status));
  }
  for (const auto command : {CheckpointInspectCommand, CheckpointVerifyCommand,
                             CheckpointDiffCommand, CheckpointExportCommand}) {
    const CommandRun help(command, {"--help"});
    ASSERT_OK(help.status);
    EXPECT_THAT(help.out, HasSubstr("gshard checkpoint "));
  }
}

}  // namespace
}  // namespace gshard
