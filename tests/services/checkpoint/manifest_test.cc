#include "services/checkpoint/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "services/checkpoint/sealed_lines.h"
#include "services/checkpoint/sha256.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

Manifest Sample() {
  Manifest manifest;
  manifest.step = 1200;
  manifest.model_config = "layers: 2\nname: \"\u00e9\"\n";
  manifest.tokenizer_file = "tokenizer.model";
  manifest.tokenizer_sha256 = Sha256("tokens");
  manifest.validation_loss = 0.1;
  manifest.metadata = {{"seed", "18446744073709551615"}, {"", ""}};
  manifest.tensors = {
      {"moe/wi/1",
       "worker-0.safetensors",
       ElementType::kFloat32,
       {2, 3},
       Sha256("b")},
      {"moe/wi/0",
       "worker-1.safetensors",
       ElementType::kInt64,
       {},
       Sha256("a")},
      {"quote\"\\\u6f22",
       "router.safetensors",
       ElementType::kUint8,
       {0, 4},
       Sha256("")},
  };
  return manifest;
}

TEST(ManifestTest, ReadsWhatItWrites) {
  ASSERT_OK_AND_ASSIGN(const std::string text, FormatManifest(Sample()));
  ASSERT_OK_AND_ASSIGN(const Manifest manifest, ParseManifest(text));
  EXPECT_EQ(manifest.step, 1200);
  EXPECT_EQ(manifest.validation_loss, 0.1);
  EXPECT_EQ(manifest.model_config, Sample().model_config);
  EXPECT_EQ(manifest.tokenizer_file, "tokenizer.model");
  EXPECT_EQ(manifest.tokenizer_sha256, Sha256("tokens"));
  EXPECT_EQ(manifest.metadata, Sample().metadata);
  ASSERT_EQ(manifest.tensors.size(), 3u);
  EXPECT_EQ(manifest.tensors[0].name, "moe/wi/0");  // sorted by name
  EXPECT_EQ(manifest.tensors[0].file, "worker-1.safetensors");
  EXPECT_EQ(manifest.tensors[0].type, ElementType::kInt64);
  EXPECT_EQ(manifest.tensors[1].dims, (Dims{2, 3}));
  EXPECT_EQ(manifest.tensors[1].sha256, Sha256("b"));
  EXPECT_EQ(manifest.tensors[2].name, "quote\"\\\u6f22");
  ASSERT_OK_AND_ASSIGN(const std::string again, FormatManifest(manifest));
  EXPECT_EQ(text, again);
}

TEST(ManifestTest, AnEmptyOneIsOne) {
  ASSERT_OK_AND_ASSIGN(const std::string text, FormatManifest(Manifest()));
  ASSERT_OK_AND_ASSIGN(const Manifest manifest, ParseManifest(text));
  EXPECT_TRUE(manifest.tensors.empty());
  EXPECT_EQ(manifest.validation_loss, std::nullopt);
}

TEST(ManifestTest, EveryTruncationIsFound) {
  ASSERT_OK_AND_ASSIGN(const std::string text, FormatManifest(Sample()));
  for (size_t size = 0; size < text.size(); ++size) {
    ASSERT_THAT(ParseManifest(text.substr(0, size)),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("checksum")))
        << size;
  }
}

TEST(ManifestTest, EveryFlippedByteIsFound) {
  ASSERT_OK_AND_ASSIGN(const std::string text, FormatManifest(Sample()));
  for (size_t i = 0; i < text.size(); ++i) {
    for (const int mask : {1, 2, 0x20, 0x80}) {
      std::string damaged = text;
      damaged[i] = static_cast<char>(damaged[i] ^ mask);
      ASSERT_THAT(ParseManifest(damaged),
                  StatusIs(absl::StatusCode::kDataLoss, HasSubstr("checksum")))
          << "byte " << i << " to '" << damaged[i] << "'";
    }
  }
}

TEST(ManifestTest, DamageIsNamed) {
  ASSERT_OK_AND_ASSIGN(const std::string text, FormatManifest(Sample()));
  const auto named = [&](const std::string& from, const std::string& to,
                         const std::string& part) {
    const std::string damaged = absl::StrReplaceAll(text, {{from, to}});
    EXPECT_NE(text, damaged) << from;
    EXPECT_THAT(ParseManifest(damaged),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(part)));
  };
  named("\"step\":1200", "\"step\":1201", "the field 'step'");
  named("\"step\":1200", "\"stop\":1200", "the field 'step'");
  named("layers: 2", "layers: 3", "the field 'model_config'");
  named("\"tensors\":[", "\"tensors\":{", "the field 'tensors'");
  named("[2,3]", "[3,2]", "tensor 'moe/wi/1' (number 1)");
  named(Sha256("a"), Sha256("b"), "tensor 'moe/wi/0' (number 0)");
  named("moe/wi/1", "moe/wi/7", "tensor 'moe/wi/7' (number 1)");
  named("{\"name\":\"moe/wi/1", "{'name\":\"moe/wi/1", "tensor number 1");
}

// Fields are validated even if the checksum is right: anyone can compute it.
TEST(ManifestTest, RefusesFieldsThatAreWrongButSigned) {
  const auto parse = [](const std::string& from, const std::string& to) {
    const std::string text = FormatManifest(Sample()).value();
    const std::string changed = absl::StrReplaceAll(text, {{from, to}});
    EXPECT_NE(text, changed) << from;
    std::vector<std::string> lines = absl::StrSplit(changed, '\n');
    lines.resize(lines.size() - 4);  // drops the seal
    return ParseManifest(SealLines(lines));
  };
  const auto refused = [&](const std::string& from, const std::string& to,
                           const std::string& message) {
    EXPECT_THAT(parse(from, to),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(message)));
  };
  ASSERT_OK(parse("layers: 2", "layers: 3"));  // the signing itself works
  refused("\"step\":1200", "\"step\":-1", "integer 'step' >= 0, got -1");
  refused("\"step\":1200", "\"step\":\"x\"", "integer 'step'");
  refused("router.safetensors", "../router", "a file's name");
  refused("router.safetensors", "manifest.json", "expected a file of tensors");
  refused("tokenizer.model", "/etc/passwd", "tokenizer_file: a file's name");
  refused("tokenizer.model", "manifest.json", "tokenizer_file must not be");
  refused("[2,3]", "[2,-3]", "sizes >= 0");
  refused("[2,3]", "[4611686018427387904,3]", "2^60");
  refused("[2,3]", "[2.5]", "array of integers");
  refused("\"f32\"", "\"f16\"", "got 'f16'");
  refused("moe/wi/1", "moe/wi/0", "expected order of name");
  refused("moe/wi/0", "moe/wi/2", "expected order of name");
  refused(Sha256("b"), "b", "sha256 of 64 hexadecimal digits");
  refused("\"seed\":\"18446744073709551615\"", "\"seed\":1", "string 'seed'");
}

TEST(ManifestTest, ALaterVersionIsNoDamage) {
  ASSERT_OK_AND_ASSIGN(const std::string text, FormatManifest(Sample()));
  std::vector<std::string> lines = absl::StrSplit(
      absl::StrReplaceAll(text, {{"\"version\":1", "\"version\":2"}}), '\n');
  lines.resize(lines.size() - 4);  // drops the seal
  EXPECT_THAT(ParseManifest(SealLines(lines)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("expected a checkpoint of version 1, got 2")));
  EXPECT_THAT(ParseManifest(SealLines({"{", "\"format\":\"other\","})),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("expected format 'gshard-checkpoint'")));
}

TEST(ManifestTest, ALossIsANumber) {
  Manifest manifest = Sample();
  manifest.validation_loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(FormatManifest(manifest),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("validation_loss: expected a finite")));
}

TEST(ManifestTest, TwoShardsWithOneTensorAreNamed) {
  Manifest manifest = Sample();
  manifest.tensors[1].name = "moe/wi/1";
  EXPECT_THAT(FormatManifest(manifest),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       HasSubstr("'moe/wi/1' is both in worker-0.safetensors "
                                 "and in worker-1.safetensors")));
}

TEST(ManifestTest, FileNamesStayInTheDirectory) {
  for (const char* name : {"a", "a.b-c_d", "0"}) EXPECT_OK(CheckFileName(name));
  for (const char* name : {"", ".", "..", ".a", "a/b", "/a", "a b", "\u00e9"}) {
    EXPECT_THAT(CheckFileName(name),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("a file's name must be")));
  }
  EXPECT_FALSE(CheckFileName(std::string(129, 'a')).ok());
}

}  // namespace
}  // namespace gshard
