#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "services/checkpoint/checkpoint.h"
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

// The name of the manifest field or tensor that byte `at` is part of. Empty if
// errors can name only the file.
std::string PartOfManifest(const std::string& text, size_t at) {
  const size_t start = text.rfind('\n', at == 0 ? 0 : at - 1);
  const size_t line = start == std::string::npos || at == 0 ? 0 : start + 1;
  const std::string key = text.substr(line, text.find('\n', line) - line);
  const size_t quote = key.find('"');
  if (quote == std::string::npos) return "";  // a bracket alone
  if (key[0] == '"') return key.substr(1, key.find('"', 1) - 1);
  constexpr absl::string_view kStart = "{\"name\":\"";
  const size_t end = key.find("\",\"file\":");
  // Errors cannot give a name that is itself damaged.
  if (at - line < end + 9) return "tensor";
  return key.substr(kStart.size(), end - kStart.size());
}

// A flipped bit in any byte of any file is found on opening or on a full read,
// and the error names the file and the tensor or field.
TEST(DamageTest, EveryFlippedByteIsFoundAndNamed) {
  ScratchDirectory scratch;
  ASSERT_OK_AND_ASSIGN(const auto entries, WriteShards(scratch.path(), 1, 1));
  Manifest manifest = ManifestOf(1, entries);
  manifest.target_tokenizer_file = "target.model";
  manifest.validation_loss = 2.5;
  ASSERT_OK_AND_ASSIGN(
      const std::string path,
      CommitCheckpoint(scratch.path(), manifest, "pieces", "Stuecke"));
  ASSERT_OK_AND_ASSIGN(const auto files, ListDirectory(path));
  ASSERT_EQ(files.size(), 5u);
  int64_t flipped = 0;
  for (const std::string& file : files) {
    SCOPED_TRACE(file);
    const std::string name = absl::StrCat(path, "/", file);
    const std::string bytes = Slurp(name);
    std::map<std::string, StoredTensor> stored;
    if (absl::EndsWith(file, ".safetensors")) {
      ASSERT_OK_AND_ASSIGN(const auto shard, SafetensorsReader::Open(name));
      stored = shard->tensors();
    }
    for (size_t i = 0; i < bytes.size(); ++i, ++flipped) {
      std::string part;
      if (file == "manifest.json") part = PartOfManifest(bytes, i);
      for (const auto& [tensor, place] : stored) {
        const size_t in_header = bytes.find("\"" + tensor + "\":");
        const bool of_header =
            i >= in_header && i <= bytes.find('}', in_header);
        const bool of_elements =
            i >= place.offset && i < place.offset + place.bytes;
        if (of_header || of_elements) part = "tensor '" + tensor + "'";
      }
      if (!stored.empty() && part.empty()) part = "header";
      Poke(name, i, static_cast<char>(bytes[i] ^ (1 << (i % 8))));
      const auto reader = CheckpointReader::Open(path);
      ASSERT_THAT(
          reader.ok() ? (*reader)->Verify() : reader.status(),
          StatusIs(absl::StatusCode::kDataLoss,
                   AllOf(HasSubstr(absl::StrCat("/", file)), HasSubstr(part))))
          << "byte " << i << " of " << bytes.size();
      Poke(name, i, bytes[i]);
    }
  }
  EXPECT_GT(flipped, 2500);
  ASSERT_OK_AND_ASSIGN(const auto reader, CheckpointReader::Open(path));
  EXPECT_OK(reader->Verify());
}

// A damaged tensor affects reads of no other, in its own or other files.
TEST(DamageTest, ADamagedFileSpoilsNoTensorOfAnother) {
  ScratchDirectory scratch;
  ASSERT_OK_AND_ASSIGN(const std::string path,
                       WriteCheckpoint(scratch.path(), 1, 2));
  const std::string name = path + "/worker-1.safetensors";
  Poke(name, Slurp(name).size() - 1, '?');
  ASSERT_OK_AND_ASSIGN(const auto reader, CheckpointReader::Open(path));
  for (const int e : {0, 2, 4, 6, 1, 3}) {
    EXPECT_OK(reader->Read(ExpertSpec(e)));
  }
  EXPECT_THAT(reader->Read(ExpertSpec(5)),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("tensor 'moe_0/wi/5'"),
                             HasSubstr("worker-1.safetensors"))));
}

TEST(DamageTest, EveryTruncatedFileIsFound) {
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

TEST(DamageTest, EveryMissingFileIsFound) {
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

TEST(DamageTest, AShardOfAnotherCheckpointIsFound) {
  ScratchDirectory scratch;
  ASSERT_OK_AND_ASSIGN(const std::string one,
                       WriteCheckpoint(scratch.path(), 1, 2));
  ASSERT_OK_AND_ASSIGN(const std::string two,
                       WriteCheckpoint(scratch.path(), 2, 2));
  std::string shard = Slurp(two + "/worker-1.safetensors");
  Spill(one + "/worker-1.safetensors", shard);
  EXPECT_THAT(CheckpointReader::Open(one),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("worker-1.safetensors"),
                             HasSubstr("in the header's metadata"))));
  // A shard of the same step but of another job passes the open; its tensors'
  // checksums differ.
  shard = absl::StrReplaceAll(shard, {{"\"step\":\"2\"", "\"step\":\"1\""}});
  Spill(one + "/worker-1.safetensors", shard);
  ASSERT_OK_AND_ASSIGN(const auto reader, CheckpointReader::Open(one));
  EXPECT_OK(reader->Read(ExpertName(0)));
  EXPECT_THAT(
      reader->Read(ExpertName(1)),
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("'moe_0/wi/1' of")));
}

TEST(DamageTest, RenamedAddedAndReshapedTensorsOfAShardAreFound) {
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
  refused("tensor 'dense' is missing");
  replace({{"dense", ElementType::kFloat32, {5}},
           {"more", ElementType::kFloat32, {1}}});
  refused("expected 1 tensors, got 2");
  replace({{"dense", ElementType::kFloat32, {6}}});
  refused("expected f32[5], got f32[6]");
  replace({{"dense", ElementType::kInt32, {5}}});
  refused("expected f32[5], got i32[5]");
}

}  // namespace
}  // namespace gshard
