#include "services/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/checkpoint/checkpoint_folder.h"
#include "services/storage/file.h"
#include "tests/services/checkpoint/checkpoint_samples.h"
#include "tests/services/storage/scratch_directory.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Any number of workers can read what any number wrote, for even and uneven
// splits, even if some workers hold no expert.
TEST(CheckpointTest, AnyNumberOfWorkersReadsWhatAnyNumberWrote) {
  const std::vector<int> counts = {1, 2, 3, 5, 8, 13};
  for (const int num_writers : counts) {
    SCOPED_TRACE(num_writers);
    ScratchDirectory scratch;
    ASSERT_OK_AND_ASSIGN(const std::string path,
                         WriteCheckpoint(scratch.path(), 1200, num_writers));
    EXPECT_EQ(path, scratch / "step-00001200");
    EXPECT_FALSE(IsDirectory(PartialCheckpointPath(scratch.path(), 1200)));
    for (const int num_readers : counts) {
      for (int worker = 0; worker < num_readers; ++worker) {
        ASSERT_OK_AND_ASSIGN(const auto reader, CheckpointReader::Open(path));
        for (const int e : ExpertsOf(worker, num_readers)) {
          ASSERT_OK_AND_ASSIGN(const Tensor tensor,
                               reader->Read(ExpertSpec(e)));
          EXPECT_TRUE(TensorEqual(tensor, ExpertWeight(e, 1200)));
        }
      }
    }
    ASSERT_OK_AND_ASSIGN(const auto reader, CheckpointReader::Open(path));
    EXPECT_EQ(reader->manifest().model_config, "experts: 7");
    EXPECT_EQ(reader->manifest().metadata.at("seed"), "1");
    EXPECT_TRUE(HoldsItsStep(*reader));
    EXPECT_OK(reader->Verify());
  }
}

TEST(CheckpointTest, ShipsATokenizerForEachSide) {
  ScratchDirectory scratch;
  ASSERT_OK_AND_ASSIGN(const auto entries, WriteShards(scratch.path(), 3, 1));
  Manifest manifest = ManifestOf(3, entries);
  manifest.target_tokenizer_file = "target.model";
  ASSERT_OK_AND_ASSIGN(
      const std::string path,
      CommitCheckpoint(scratch.path(), manifest, "source", "target"));
  ASSERT_OK_AND_ASSIGN(const auto reader, CheckpointReader::Open(path));
  ASSERT_OK_AND_ASSIGN(const std::string source, reader->ReadTokenizer());
  ASSERT_OK_AND_ASSIGN(const std::string target, reader->ReadTargetTokenizer());
  EXPECT_EQ(source, "source");
  EXPECT_EQ(target, "target");
  ASSERT_OK(WriteFileAtomically(path + "/target.model", "tarnet"));
  ASSERT_OK_AND_ASSIGN(const auto damaged, CheckpointReader::Open(path));
  EXPECT_THAT(damaged->Verify(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("target.model")));
  manifest.step = 4;
  manifest.target_tokenizer_file = manifest.tokenizer_file;
  EXPECT_THAT(CommitCheckpoint(scratch.path(), manifest, "source", "target"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("target_tokenizer_file")));
}

TEST(CheckpointTest, UnusualNamesAndEmptyTensors) {
  ScratchDirectory scratch;
  const std::vector<std::string> names = {
      "a b",     "quote\"\\", "\u6f22\u5b57",
      "../../x", "{\"a\":1}", std::string(512, 'z')};
  std::vector<TensorSpec> specs;
  for (const std::string& name : names) {
    specs.push_back({name, ElementType::kFloat32, {0, 3}});
  }
  ASSERT_OK_AND_ASSIGN(const auto writer, CheckpointWriter::Create(
                                              scratch.path(), 0, "all", specs));
  for (const std::string& name : names) {
    ASSERT_OK(writer->Write(name, Tensor(ElementType::kFloat32, {0, 3})));
  }
  ASSERT_OK_AND_ASSIGN(const auto entries, writer->Finish());
  Manifest manifest = ManifestOf(0, entries);
  manifest.tokenizer_file.clear();
  ASSERT_OK_AND_ASSIGN(const std::string path,
                       CommitCheckpoint(scratch.path(), manifest, ""));
  ASSERT_OK_AND_ASSIGN(const auto reader, CheckpointReader::Open(path));
  EXPECT_OK(reader->CheckExactly(specs));
  EXPECT_OK(reader->Verify());
  EXPECT_THAT(reader->ReadTokenizer(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("tokenizer")));
}

TEST(CheckpointTest, NothingIsReadableBeforeTheCommit) {
  ScratchDirectory scratch;
  ASSERT_OK(WriteShards(scratch.path(), 5, 2));
  EXPECT_THAT(
      LatestCheckpoint(scratch.path()),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("no checkpoint")));
  EXPECT_THAT(
      CheckpointReader::Open(PartialCheckpointPath(scratch.path(), 5)),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("manifest.json")));
  EXPECT_THAT(CheckpointReader::Open(scratch / "none"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none")));
}

TEST(CheckpointTest, CheckExactlyNamesWhatDoesNotFit) {
  ScratchDirectory scratch;
  ASSERT_OK_AND_ASSIGN(const std::string path,
                       WriteCheckpoint(scratch.path(), 1, 2));
  ASSERT_OK_AND_ASSIGN(const auto reader, CheckpointReader::Open(path));
  std::vector<TensorSpec> specs = AllSpecs();
  specs[0].dims = {6};            // misshapen
  specs[1].name = "moe_0/wi/99";  // missing; moe_0/wi/0 is then extra
  for (int i = 0; i < 9; ++i) {
    specs.push_back({absl::StrCat("more/", i), ElementType::kFloat32, {1}});
  }
  EXPECT_THAT(
      reader->CheckExactly(specs),
      StatusIs(
          absl::StatusCode::kFailedPrecondition,
          AllOf(HasSubstr("expected 17 tensors, got 8"),
                HasSubstr("10 missing (moe_0/wi/99, more/0, more/1, more/2, "
                          "...)"),
                HasSubstr("1 extra (moe_0/wi/0)"),
                HasSubstr("1 misshapen (dense: expected f32[6], got f32[5])"),
                Not(HasSubstr("more/3")))));
  std::vector<TensorSpec> twice = AllSpecs();
  twice.push_back(twice[2]);
  EXPECT_THAT(reader->CheckExactly(twice),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("'moe_0/wi/1' is expected twice")));
}

TEST(CheckpointTest, ReadHoldsTheTensorToWhatIsExpected) {
  ScratchDirectory scratch;
  ASSERT_OK_AND_ASSIGN(const std::string path,
                       WriteCheckpoint(scratch.path(), 1, 1));
  ASSERT_OK_AND_ASSIGN(const auto reader, CheckpointReader::Open(path));
  EXPECT_THAT(reader->Read({"dense", ElementType::kFloat32, {4}}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("expected f32[4], got f32[5]")));
  EXPECT_THAT(reader->Read({"dense", ElementType::kInt32, {5}}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("expected i32[5], got f32[5]")));
  EXPECT_THAT(reader->Read("sparse"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'sparse'")));
  EXPECT_TRUE(reader->Has("dense"));
  EXPECT_FALSE(reader->Has("dens"));
  EXPECT_EQ(reader->Find("zzz"), nullptr);
}

TEST(CheckpointTest, CommitRefusesWhatTheShardsDoNotHold) {
  ScratchDirectory scratch;
  ASSERT_OK_AND_ASSIGN(auto entries, WriteShards(scratch.path(), 3, 2));
  const auto commit = [&](const std::vector<TensorEntry>& all) {
    return CommitCheckpoint(scratch.path(), ManifestOf(3, all), "pieces");
  };
  auto changed = entries;
  changed.push_back(entries[0]);
  EXPECT_THAT(commit(changed), StatusIs(absl::StatusCode::kAlreadyExists,
                                        HasSubstr("'dense' is both in")));
  changed = entries;
  changed.pop_back();
  EXPECT_THAT(commit(changed), StatusIs(absl::StatusCode::kFailedPrecondition,
                                        HasSubstr("expected 2 tensors, got")));
  changed = entries;
  changed[0].file = "router-2.safetensors";
  EXPECT_THAT(commit(changed), StatusIs(absl::StatusCode::kFailedPrecondition,
                                        HasSubstr("router-2.safetensors")));
  changed = entries;
  changed[0].dims = {1, 5};
  EXPECT_THAT(commit(changed), StatusIs(absl::StatusCode::kFailedPrecondition,
                                        HasSubstr("expected f32[1, 5]")));
  EXPECT_THAT(LatestCheckpoint(scratch.path()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("")));
  ASSERT_OK(commit(entries));
  EXPECT_THAT(commit(entries), StatusIs(absl::StatusCode::kAlreadyExists,
                                        HasSubstr("step-00000003")));
  EXPECT_THAT(
      WriteRouter(scratch.path(), 3),
      StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("step-00000003")));
}

TEST(CheckpointTest, BadShardNamesAndStepsAreRefused) {
  ScratchDirectory scratch;
  EXPECT_THAT(CheckpointWriter::Create(scratch.path(), 1, "../x", {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("shard")));
  EXPECT_THAT(
      CheckpointWriter::Create(scratch.path(), -1, "x", {}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("got -1")));
}

TEST(CheckpointTest, AbandonedStepsAreRemoved) {
  ScratchDirectory scratch;
  ASSERT_OK(WriteShards(scratch.path(), 3, 2));
  ASSERT_OK(AbandonCheckpoint(scratch.path(), 3));
  ASSERT_OK_AND_ASSIGN(const auto names, ListDirectory(scratch.path()));
  EXPECT_THAT(names, IsEmpty());
}

}  // namespace
}  // namespace gshard
