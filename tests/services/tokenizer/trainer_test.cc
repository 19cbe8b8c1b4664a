#include "services/tokenizer/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/config/language_name.h"
#include "services/tokenizer/tokenizer.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<std::string> Sentences() {
  std::vector<std::string> sentences;
  for (int i = 0; i < 400; ++i) {
    sentences.push_back(absl::StrCat("package number ", i * 7919 % 1000,
                                     " is a library for träge Köche ", i % 13));
  }
  return sentences;
}

TokenizerOptions Options() {
  TokenizerOptions options;
  options.vocab_size = 100;
  options.languages = {"de"};
  return options;
}

std::string Path(const std::string& name) {
  return ::testing::TempDir() + "trainer_test_" + name;
}

TEST(TrainerTest, SameTextAndOptionsGiveTheSameBytes) {
  for (const auto type : {TokenizerOptions::ModelType::kUnigram,
                          TokenizerOptions::ModelType::kBpe}) {
    TokenizerOptions options = Options();
    options.model_type = type;
    ASSERT_OK(TrainTokenizer(options, Sentences(), Path("a")));
    ASSERT_OK(TrainTokenizer(options, Sentences(), Path("b")));
    ASSERT_OK_AND_ASSIGN(const auto a, Tokenizer::Load(Path("a")));
    ASSERT_OK_AND_ASSIGN(const auto b, Tokenizer::Load(Path("b")));
    EXPECT_TRUE(a->model_bytes() == b->model_bytes());
    EXPECT_LE(a->vocab_size(), 100);
  }
}

TEST(TrainerTest, RefusesOptionsOutOfRange) {
  const auto expect = [](const TokenizerOptions& options,
                         const std::string& message) {
    EXPECT_THAT(
        TrainTokenizer(options, Sentences(), Path("refused")),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  TokenizerOptions options = Options();
  options.vocab_size = 10;
  expect(options, "vocab_size: expected 64 to 256000, got 10");
  for (const char* name : {"", "s", "unk", "pad", "a b", "--x=>"}) {
    options = Options();
    options.languages = {name};
    expect(options, "languages");
  }
  options = Options();  // more tags than pieces
  options.vocab_size = kMinVocabSize;
  for (int i = 0; i < kMinVocabSize; ++i) {
    options.languages.push_back(absl::StrCat("x", i));
  }
  expect(options, "vocab_size: Vocabulary size");
  EXPECT_FALSE(std::filesystem::exists(Path("refused")));
}

// The tags are one argument of a program, whose bytes Linux bounds.
TEST(TrainerTest, TakesAsManyLanguagesAsFit) {
  TokenizerOptions options = Options();
  options.vocab_size = kMaxLanguages + 100;
  options.languages.clear();
  for (size_t i = 0; i < kMaxLanguages; ++i) {
    std::string name = absl::StrCat("x", i);
    name.resize(kMaxLanguageBytes, '-');
    options.languages.push_back(std::move(name));
  }
  ASSERT_OK(TrainTokenizer(options, Sentences(), Path("languages")));
  ASSERT_OK_AND_ASSIGN(const auto made, Tokenizer::Load(Path("languages")));
  EXPECT_OK(made->LanguageTagId(options.languages.back()));
  options.languages.push_back("de");
  EXPECT_THAT(TrainTokenizer(options, Sentences(), Path("languages")),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "languages: expected at most 3500, got 3501"));
}

TEST(TrainerTest, SkipsSentencesThatAreTooLong) {
  ASSERT_OK(TrainTokenizer(Options(), Sentences(), Path("short")));
  std::vector<std::string> sentences = Sentences();
  sentences.insert(sentences.begin() + 7,
                   std::string(kMaxSentenceBytes + 1, 'z'));
  ASSERT_OK(TrainTokenizer(Options(), sentences, Path("long")));
  ASSERT_OK_AND_ASSIGN(const auto a, Tokenizer::Load(Path("short")));
  ASSERT_OK_AND_ASSIGN(const auto b, Tokenizer::Load(Path("long")));
  EXPECT_TRUE(a->model_bytes() == b->model_bytes());
  // No shorter ones.
  sentences[7].resize(kMaxSentenceBytes);
  ASSERT_OK(TrainTokenizer(Options(), sentences, Path("longest")));
  ASSERT_OK_AND_ASSIGN(const auto c, Tokenizer::Load(Path("longest")));
  EXPECT_FALSE(a->model_bytes() == c->model_bytes());
}

TEST(TrainerTest, RefusesTextItCannotUse) {
  EXPECT_THAT(TrainTokenizer(Options(), {}, Path("none")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("text")));
  EXPECT_THAT(TrainTokenizer(Options(), {" ", "\n"}, Path("none")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("text")));
  EXPECT_THAT(
      TrainTokenizer(Options(), {"ok", "\xFF"}, Path("none")),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("sentence 1")));
}

TEST(TrainerTest, NamesTheFolderItCannotWrite) {
  EXPECT_THAT(
      TrainTokenizer(Options(), Sentences(), "/no/such/folder/m"),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no/such/folder/m")));
  // As on a disk that is away, which is no fault of the text.
  const std::string loop = Path("loop");
  std::filesystem::remove(loop);
  std::filesystem::create_symlink(loop, loop);
  EXPECT_THAT(TrainTokenizer(Options(), Sentences(), loop + "/m"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(loop + "/m")));
}

TEST(TrainerTest, SaysWhatToInstall) {
  const std::string path = getenv("PATH");
  setenv("PATH", "/nowhere", 1);
  EXPECT_THAT(TrainTokenizer(Options(), Sentences(), Path("missing")),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("install the Debian package sentencepiece")));
  setenv("PATH", path.c_str(), 1);
}

// Which spm_train does not: it exits with 0.
TEST(TrainerTest, TellsADiskThatFillsMeanwhile) {
  const std::string folder = Path("program");
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/spm_train")
      << "#!/bin/sh\nset -e\nPATH=${PATH#*:}\nspm_train \"$@\"\n"
         "truncate -s 300 vocabulary.model\n";
  std::filesystem::permissions(folder + "/spm_train",
                               std::filesystem::perms::owner_all);
  const std::string path = getenv("PATH");
  setenv("PATH", (folder + ":" + path).c_str(), 1);
  EXPECT_THAT(TrainTokenizer(Options(), Sentences(), Path("full")),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr(Path("full")),
                             HasSubstr("full disk; free in " +
                                       std::filesystem::path(Path("full"))
                                           .parent_path()
                                           .string()))));
  setenv("PATH", path.c_str(), 1);
  EXPECT_FALSE(std::filesystem::exists(Path("full")));
}

TEST(TrainerTest, LeavesNoTemporaryFiles) {
  const std::string folder = Path("folder");
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  ASSERT_OK(TrainTokenizer(Options(), Sentences(), folder + "/m.model"));
  int files = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    ++files;
    EXPECT_EQ(file.path().filename(), "m.model");
  }
  EXPECT_EQ(files, 1);
}

}  // namespace
}  // namespace gshard
