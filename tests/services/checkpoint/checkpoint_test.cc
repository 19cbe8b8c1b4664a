#include "services/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/checkpoint/file.h"
#include "tests/services/checkpoint/scratch_directory.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int kNumExperts = 7;

std::string ExpertName(int e) { return absl::StrCat("moe_0/wi/", e); }
Tensor ExpertWeight(int e, int64_t step) {
  return RandomTensor({3, 4}, 100 * step + e);
}
Tensor DenseWeight(int64_t step) { return RandomTensor({5}, 7 + step); }

std::vector<TensorSpec> AllSpecs() {
  std::vector<TensorSpec> specs = {{"dense", ElementType::kFloat32, {5}}};
  for (int e = 0; e < kNumExperts; ++e) {
    specs.push_back({ExpertName(e), ElementType::kFloat32, {3, 4}});
  }
  return specs;
}

// What `worker` of `num_workers` writes: experts are dealt out in turn, so that
// counts are uneven.
absl::StatusOr<std::vector<TensorEntry>> WriteWorker(const std::string& root,
                                                     int64_t step, int worker,
                                                     int num_workers) {
  std::vector<TensorSpec> specs;
  for (int e = worker; e < kNumExperts; e += num_workers) {
    specs.push_back({ExpertName(e), ElementType::kFloat32, {3, 4}});
  }
  auto writer = CheckpointWriter::Create(
      root, step, absl::StrCat("worker-", worker), specs);
  if (!writer.ok()) return writer.status();
  for (int e = worker; e < kNumExperts; e += num_workers) {
    const absl::Status status =
        (*writer)->Write(ExpertName(e), ExpertWeight(e, step));
    if (!status.ok()) return status;
  }
  return (*writer)->Finish();
}

absl::StatusOr<std::vector<TensorEntry>> WriteRouter(const std::string& root,
                                                     int64_t step) {
  auto writer = CheckpointWriter::Create(
      root, step, "router", {{"dense", ElementType::kFloat32, {5}}});
  if (!writer.ok()) return writer.status();
  const absl::Status status = (*writer)->Write("dense", DenseWeight(step));
  if (!status.ok()) return status;
  return (*writer)->Finish();
}

Manifest ManifestOf(int64_t step, const std::vector<TensorEntry>& entries) {
  Manifest manifest;
  manifest.step = step;
  manifest.model_config = "experts: 7";
  manifest.tokenizer_file = "tokenizer.model";
  manifest.metadata = {{"seed", "1"}};
  manifest.tensors = entries;
  return manifest;
}

absl::StatusOr<std::vector<TensorEntry>> WriteShards(const std::string& root,
                                                     int64_t step,
                                                     int num_workers) {
  auto entries = WriteRouter(root, step);
  for (int w = 0; w < num_workers && entries.ok(); ++w) {
    const auto more = WriteWorker(root, step, w, num_workers);
    if (!more.ok()) return more.status();
    entries->insert(entries->end(), more->begin(), more->end());
  }
  return entries;
}

absl::StatusOr<std::string> WriteCheckpoint(const std::string& root,
                                            int64_t step, int num_workers) {
  const auto entries = WriteShards(root, step, num_workers);
  if (!entries.ok()) return entries.status();
  return CommitCheckpoint(root, ManifestOf(step, *entries), "pieces");
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
  EXPECT_THAT(reader->Verify(), StatusIs(absl::StatusCode::kDataLoss,
                                         HasSubstr("target.model")));
  manifest.step = 4;
  manifest.target_tokenizer_file = manifest.tokenizer_file;
  EXPECT_THAT(CommitCheckpoint(scratch.path(), manifest, "source", "target"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("target_tokenizer_file")));
}

TEST(CheckpointTest, AnyNumberOfWritersGivesTheSameTensors) {
  for (const int num_workers : {1, 2, 3, 4, 9}) {
    SCOPED_TRACE(num_workers);
    ScratchDirectory scratch;
    ASSERT_OK_AND_ASSIGN(const std::string path,
                         WriteCheckpoint(scratch.path(), 1200, num_workers));
    EXPECT_EQ(path, scratch / "step-00001200");
    ASSERT_OK_AND_ASSIGN(const auto reader, CheckpointReader::Open(path));
    EXPECT_EQ(reader->manifest().step, 1200);
    EXPECT_EQ(reader->manifest().model_config, "experts: 7");
    EXPECT_EQ(reader->manifest().metadata.at("seed"), "1");
    EXPECT_OK(reader->CheckExactly(AllSpecs()));
    for (int e = 0; e < kNumExperts; ++e) {
      ASSERT_OK_AND_ASSIGN(
          const Tensor tensor,
          reader->Read({ExpertName(e), ElementType::kFloat32, {3, 4}}));
      EXPECT_TRUE(TensorEqual(tensor, ExpertWeight(e, 1200)));
    }
    ASSERT_OK_AND_ASSIGN(const Tensor dense, reader->Read("dense"));
    EXPECT_TRUE(TensorEqual(dense, DenseWeight(1200)));
    ASSERT_OK_AND_ASSIGN(const auto tokenizer, reader->ReadTokenizer());
    EXPECT_EQ(tokenizer, "pieces");
    EXPECT_OK(reader->Verify());
    EXPECT_FALSE(IsDirectory(PartialCheckpointPath(scratch.path(), 1200)));
  }
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

// Kills a writing process at each of its points in turn; whatever it left, an
// older checkpoint stays the latest and the next attempt succeeds.
TEST(CheckpointTest, AWriterKilledAnywhereLeavesNoCheckpoint) {
  for (int point = 0; point < 5; ++point) {
    SCOPED_TRACE(point);
    ScratchDirectory scratch;
    ASSERT_OK_AND_ASSIGN(const std::string old,
                         WriteCheckpoint(scratch.path(), 10, 2));
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const auto die_at = [&](int here) {
        if (here == point) ::raise(SIGKILL);
      };
      auto writer = CheckpointWriter::Create(
          scratch.path(), 20, "worker-0",
          {{ExpertName(0), ElementType::kFloat32, {3, 4}},
           {ExpertName(2), ElementType::kFloat32, {3, 4}}});
      die_at(0);
      (*writer)->Write(ExpertName(0), ExpertWeight(0, 20)).IgnoreError();
      die_at(1);
      (*writer)->Write(ExpertName(2), ExpertWeight(2, 20)).IgnoreError();
      die_at(2);
      (*writer)->Finish().status().IgnoreError();
      die_at(3);
      Spill(PartialCheckpointPath(scratch.path(), 20) + "/manifest.json.tmp",
            "{\"format\"");
      die_at(4);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    ASSERT_OK_AND_ASSIGN(const std::string latest,
                         LatestCheckpoint(scratch.path()));
    EXPECT_EQ(latest, old);
    // Another attempt, with other shards, is not disturbed by what was left.
    ASSERT_OK_AND_ASSIGN(const std::string next,
                         WriteCheckpoint(scratch.path(), 20, 3));
    ASSERT_OK_AND_ASSIGN(const auto reader, CheckpointReader::Open(next));
    EXPECT_OK(reader->CheckExactly(AllSpecs()));
    EXPECT_OK(reader->Verify());
    ASSERT_OK_AND_ASSIGN(const auto files, ListDirectory(next));
    EXPECT_THAT(files,
                ElementsAre("manifest.json", "router.safetensors",
                            "tokenizer.model", "worker-0.safetensors",
                            "worker-1.safetensors", "worker-2.safetensors"));
  }
}

TEST(CheckpointTest, EveryTruncatedFileIsFound) {
  ScratchDirectory scratch;
  ASSERT_OK_AND_ASSIGN(const std::string path,
                       WriteCheckpoint(scratch.path(), 1, 2));
  ASSERT_OK_AND_ASSIGN(const auto files, ListDirectory(path));
  for (const std::string& file : files) {
    SCOPED_TRACE(file);
    const std::string name = absl::StrCat(path, "/", file);
    const std::string bytes = Slurp(name);
    for (const size_t size : {size_t{0}, size_t{4}, size_t{5}, bytes.size() / 2,
                              bytes.size() - 2}) {
      Spill(name, bytes.substr(0, size));
      const auto reader = CheckpointReader::Open(path);
      const absl::Status status =
          reader.ok() ? (*reader)->Verify() : reader.status();
      EXPECT_THAT(status,
                  StatusIs(absl::StatusCode::kDataLoss, HasSubstr(file)))
          << size;
    }
    Spill(name, bytes);
  }
  ASSERT_OK(CheckpointReader::Open(path));
}

TEST(CheckpointTest, EveryMissingFileIsFound) {
  ScratchDirectory scratch;
  ASSERT_OK_AND_ASSIGN(const std::string path,
                       WriteCheckpoint(scratch.path(), 1, 2));
  for (const char* file :
       {"router.safetensors", "worker-1.safetensors", "tokenizer.model"}) {
    const std::string name = absl::StrCat(path, "/", file);
    const std::string bytes = Slurp(name);
    ASSERT_OK(RemoveTree(name));
    const auto reader = CheckpointReader::Open(path);
    EXPECT_THAT(reader.ok() ? (*reader)->Verify() : reader.status(),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(file)));
    Spill(name, bytes);
  }
}

// One bit anywhere in any file: found when opening or when reading, or harmless
// (white space, a shard's own metadata). No tensor ever reads as another.
TEST(CheckpointTest, EveryFlippedBitIsFound) {
  ScratchDirectory scratch;
  ASSERT_OK_AND_ASSIGN(const std::string path,
                       WriteCheckpoint(scratch.path(), 1, 1));
  ASSERT_OK_AND_ASSIGN(const auto files, ListDirectory(path));
  std::map<std::string, Tensor> written = {{"dense", DenseWeight(1)}};
  for (int e = 0; e < kNumExperts; ++e) {
    written[ExpertName(e)] = ExpertWeight(e, 1);
  }
  for (const std::string& file : files) {
    SCOPED_TRACE(file);
    const std::string name = absl::StrCat(path, "/", file);
    const std::string bytes = Slurp(name);
    // Only in a shard's header may a flipped bit do no harm; and in the line
    // feed at the end of the manifest.
    size_t header_end = 0;
    if (absl::EndsWith(file, ".safetensors")) {
      header_end = 8 + static_cast<unsigned char>(bytes[0]) +
                   256 * static_cast<unsigned char>(bytes[1]);
      ASSERT_LT(header_end, bytes.size());
    }
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (i > 0) Poke(name, i - 1, bytes[i - 1]);
      Poke(name, i, static_cast<char>(bytes[i] ^ (1 << (i % 8))));
      const auto reader = CheckpointReader::Open(path);
      if (i >= header_end && bytes[i] != '\n') {
        ASSERT_FALSE(reader.ok() && (*reader)->Verify().ok()) << "byte " << i;
      }
      if (!reader.ok()) continue;
      EXPECT_EQ((*reader)->manifest().step, 1);
      for (const auto& [tensor_name, expected] : written) {
        const auto tensor = (*reader)->Read(tensor_name);
        if (!tensor.ok()) continue;
        ASSERT_TRUE(TensorEqual(*tensor, expected)) << "byte " << i;
      }
    }
    Spill(name, bytes);
  }
}

TEST(CheckpointTest, AShardOfAnotherCheckpointIsFound) {
  ScratchDirectory scratch;
  ASSERT_OK_AND_ASSIGN(const std::string one,
                       WriteCheckpoint(scratch.path(), 1, 2));
  ASSERT_OK_AND_ASSIGN(const std::string two,
                       WriteCheckpoint(scratch.path(), 2, 2));
  Spill(one + "/worker-1.safetensors", Slurp(two + "/worker-1.safetensors"));
  ASSERT_OK_AND_ASSIGN(const auto reader, CheckpointReader::Open(one));
  EXPECT_OK(reader->Read(ExpertName(0)));
  EXPECT_THAT(
      reader->Read(ExpertName(1)),
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("'moe_0/wi/1' of")));
}

TEST(CheckpointTest, RenamedAddedAndReshapedTensorsOfAShardAreFound) {
  ScratchDirectory scratch;
  ASSERT_OK_AND_ASSIGN(const std::string path,
                       WriteCheckpoint(scratch.path(), 1, 1));
  const std::string name = path + "/router.safetensors";
  const auto replace = [&](const std::vector<TensorSpec>& specs) {
    auto writer = SafetensorsWriter::Create(name, specs, {}).value();
    for (const TensorSpec& spec : specs) {
      ASSERT_OK(writer->Write(spec.name, Tensor::Zeros(spec.type, spec.dims)));
    }
    ASSERT_OK(writer->Finish());
  };
  const auto refused = [&](const std::string& message) {
    EXPECT_THAT(CheckpointReader::Open(path),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(message)));
  };
  replace({{"dense2", ElementType::kFloat32, {5}}});
  refused("'dense' of");
  replace({{"dense", ElementType::kFloat32, {5}},
           {"more", ElementType::kFloat32, {1}}});
  refused("expected 1 tensors, got 2");
  replace({{"dense", ElementType::kFloat32, {6}}});
  refused("expected f32[5], got f32[6]");
  replace({{"dense", ElementType::kInt32, {5}}});
  refused("expected f32[5], got i32[5]");
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

TEST(CheckpointTest, LatestFallsBackToTheLastGoodOne) {
  ScratchDirectory scratch;
  ASSERT_OK(WriteCheckpoint(scratch.path(), 9, 1));
  ASSERT_OK(WriteCheckpoint(scratch.path(), 100000000, 1));  // nine digits
  ASSERT_OK(WriteCheckpoint(scratch.path(), 10, 1));
  Spill(scratch / "step-00000099", "a file");
  Spill(scratch / "step-x", "");
  ASSERT_OK(MakeDirectories(scratch / "step-00000500.partial"));
  Spill(scratch / "step-100000000/router.safetensors", "");
  ASSERT_OK_AND_ASSIGN(const std::string latest,
                       LatestCheckpoint(scratch.path()));
  EXPECT_EQ(latest, scratch / "step-00000010");
  Spill(scratch / "step-00000010/manifest.json", "");
  Spill(scratch / "step-00000009/manifest.json", "{}");
  EXPECT_THAT(LatestCheckpoint(scratch.path()),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("none of 4 checkpoints")));
  EXPECT_THAT(LatestCheckpoint(scratch / "none"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none")));
}

TEST(CheckpointTest, PrunesTheOldest) {
  ScratchDirectory scratch;
  for (const int64_t step : {1, 2, 3, 4}) {
    ASSERT_OK(WriteCheckpoint(scratch.path(), step, 1));
  }
  ASSERT_OK(PruneCheckpoints(scratch.path(), 2));
  ASSERT_OK_AND_ASSIGN(const auto names, ListDirectory(scratch.path()));
  EXPECT_THAT(names, ElementsAre("step-00000003", "step-00000004"));
  EXPECT_THAT(PruneCheckpoints(scratch.path(), 0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("got 0")));
}

TEST(CheckpointTest, AbandonedStepsAreRemoved) {
  ScratchDirectory scratch;
  ASSERT_OK(WriteShards(scratch.path(), 3, 2));
  ASSERT_OK(AbandonCheckpoint(scratch.path(), 3));
  ASSERT_OK_AND_ASSIGN(const auto names, ListDirectory(scratch.path()));
  EXPECT_THAT(names, IsEmpty());
}

// A file-size limit stands for the full disk: the system refuses to write on.
TEST(CheckpointTest, AFullDiskIsResourceExhaustedAndLeavesTheOldOne) {
  ScratchDirectory scratch;
  ASSERT_OK_AND_ASSIGN(const std::string old,
                       WriteCheckpoint(scratch.path(), 1, 1));
  ASSERT_NE(::signal(SIGXFSZ, SIG_IGN), SIG_ERR);
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 4096;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  absl::Status written;
  {
    auto writer = CheckpointWriter::Create(
        scratch.path(), 2, "big", {{"x", ElementType::kFloat32, {4096}}});
    written = writer.ok() ? (*writer)->Write("x", RandomTensor({4096}, 1))
                          : writer.status();
  }
  Manifest manifest;
  manifest.step = 3;
  manifest.model_config = std::string(8192, 'x');
  const absl::Status committed =
      CommitCheckpoint(scratch.path(), manifest, "").status();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_THAT(written, StatusIs(absl::StatusCode::kResourceExhausted,
                                HasSubstr("big.safetensors")));
  EXPECT_THAT(committed, StatusIs(absl::StatusCode::kResourceExhausted,
                                  HasSubstr("manifest.json")));
  ASSERT_OK_AND_ASSIGN(const std::string latest,
                       LatestCheckpoint(scratch.path()));
  EXPECT_EQ(latest, old);
  ASSERT_OK(CommitCheckpoint(scratch.path(), manifest, ""));  // room again
}

}  // namespace
}  // namespace gshard
