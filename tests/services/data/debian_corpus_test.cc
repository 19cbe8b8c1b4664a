#include "services/data/debian_corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "services/data/cleaning.h"
#include "services/data/corpus.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A fake apt-get comes first in PATH: no network, and any failure.
class DebianCorpusTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "debian corpus, \"quoted\"/";
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_ + "bin");
    path_ = getenv("PATH");
    setenv("PATH", (folder_ + "bin:" + path_).c_str(), 1);
    options_.out = folder_ + "out";
    options_.languages = {"de", "pt_BR"};
  }
  void TearDown() override {
    setenv("PATH", path_.c_str(), 1);
    std::filesystem::remove_all(folder_);
  }

  void MakeAptGet(const std::string& script) {
    const std::string path = folder_ + "bin/apt-get";
    std::ofstream(path) << "#!/bin/sh\n" << script;
    chmod(path.c_str(), 0755);
  }

  // Writes what apt leaves in the private lists.
  void MakeIndex(const std::string& name, const std::string& language,
                 int packages) {
    const std::string lists = options_.out + "/apt/lists/";
    std::filesystem::create_directories(lists);
    std::ofstream file(lists + name);
    for (int i = 0; i < packages; ++i) {
      std::string word;
      for (int n = i; n >= 0; n = n / 26 - 1) word += 'a' + n % 26;
      file << "Package: p" << i << "\nDescription-md5: " << i
           << "\nDescription-" << language << ": " << language << " word "
           << word << "\n\n";
    }
  }

  DebianCorpusOptions options_;
  std::string folder_;
  std::string path_;
};

TEST_F(DebianCorpusTest, SplitsWithoutSharedEnglish) {
  MakeAptGet("exit 0\n");
  MakeIndex("a_dists_b_main_i18n_Translation-en", "en", 2000);
  MakeIndex("a_dists_b_main_i18n_Translation-de", "de", 2000);
  MakeIndex("a_dists_b_main_i18n_Translation-pt%5fBR", "pt_BR", 1000);
  ASSERT_OK_AND_ASSIGN(const DebianCorpusReport report,
                       BuildDebianCorpus(options_));
  EXPECT_THAT(report.warnings, IsEmpty());
  ASSERT_EQ(report.lines.size(), 2u);
  EXPECT_EQ(report.lines[0].train + report.lines[0].dev + report.lines[0].test,
            2000);
  EXPECT_EQ(report.lines[1].train + report.lines[1].dev + report.lines[1].test,
            1000);
  std::set<std::string> train_english;
  ASSERT_OK_AND_ASSIGN(const Corpus train,
                       ReadCorpus(options_.out + "/train.tsv"));
  for (const SentencePair& pair : train.pairs) {
    train_english.insert(pair.target);
  }
  for (const char* name : {"/dev.tsv", "/test.tsv"}) {
    ASSERT_OK_AND_ASSIGN(const Corpus held_out,
                         ReadCorpus(options_.out + name));
    EXPECT_GT(held_out.pairs.size(), 5u);
    for (const SentencePair& pair : held_out.pairs) {
      EXPECT_EQ(train_english.count(pair.target), 0u) << pair.target;
    }
  }
  // Languages are mixed, so that the first lines are a fair sample.
  std::set<std::string> first;
  for (int i = 0; i < 20; ++i) first.insert(train.pairs[i].language);
  EXPECT_EQ(first.size(), 2u);
}

TEST_F(DebianCorpusTest, AsksAptForItsLanguagesOnly) {
  // The fake apt-get writes to a folder without quotes in its name.
  const std::filesystem::path plain =
      ::testing::TempDir() + "debian_corpus_plain";
  std::filesystem::remove_all(plain);
  std::filesystem::create_directories(plain);
  MakeAptGet("for a; do echo \"$a\"; done > " + plain.string() +
             "/arguments; cat \"$APT_CONFIG\" > " + plain.string() +
             "/config\n");
  EXPECT_THAT(BuildDebianCorpus(options_),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("are there Debian sources")));
  std::vector<std::string> arguments;
  std::ifstream file(plain / "arguments");
  for (std::string line; std::getline(file, line);) arguments.push_back(line);
  EXPECT_THAT(arguments,
              Contains("Dir::State::lists=" + options_.out + "/apt/lists/"));
  EXPECT_THAT(arguments, Contains("update"));
  std::ifstream main(options_.out + "/apt/main.conf");
  const std::string text((std::istreambuf_iterator<char>(main)),
                         std::istreambuf_iterator<char>());
  EXPECT_THAT(text, HasSubstr("\"en\"; \"de\"; \"pt_BR\"; "));
  std::ifstream config(plain / "config");
  std::string first;
  std::getline(config, first);
  EXPECT_EQ(first, "Dir::Etc::main \"./main.conf\";");
  std::filesystem::remove_all(plain);
}

TEST_F(DebianCorpusTest, RefusesBadLanguages) {
  for (const std::vector<std::string>& languages :
       std::vector<std::vector<std::string>>{
           {}, {""}, {"en"}, {"none"}, {"../x"}, {"de\""}, {"de", "de"}}) {
    options_.languages = languages;
    EXPECT_THAT(
        BuildDebianCorpus(options_),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("languages")));
  }
  EXPECT_FALSE(std::filesystem::exists(options_.out));
}

TEST_F(DebianCorpusTest, TellsThatThereIsNoApt) {
  setenv("PATH", "/nowhere", 1);
  EXPECT_THAT(
      BuildDebianCorpus(options_),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no apt-get")));
}

TEST_F(DebianCorpusTest, TellsThatThereIsNoNetwork) {
  MakeAptGet(
      "echo 'W: Failed to fetch http://x/InRelease  Could not resolve x' >&2\n"
      "exit 0\n");
  EXPECT_THAT(BuildDebianCorpus(options_),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("Could not resolve x")));
}

TEST_F(DebianCorpusTest, TellsAFullDisk) {
  MakeAptGet(
      "echo 'E: write, still have 9 to write (28: No space left on device)' "
      ">&2\nexit 100\n");
  EXPECT_THAT(BuildDebianCorpus(options_),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("the disk is full")));
}

TEST_F(DebianCorpusTest, WarnsOfAMissingLanguageAndFailsWithoutAny) {
  MakeAptGet("exit 0\n");
  MakeIndex("a_i18n_Translation-en", "en", 200);
  EXPECT_THAT(BuildDebianCorpus(options_),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("no pairs of de, pt_BR and English")));
  MakeIndex("a_i18n_Translation-de", "de", 200);
  ASSERT_OK_AND_ASSIGN(const DebianCorpusReport report,
                       BuildDebianCorpus(options_));
  EXPECT_THAT(report.warnings, Contains(HasSubstr("\"pt_BR\"")));
  EXPECT_EQ(report.lines[1].train, 0);
}

TEST_F(DebianCorpusTest, NamesADamagedIndex) {
  MakeAptGet("exit 0\n");
  MakeIndex("a_i18n_Translation-en", "en", 10);
  const std::string bad = options_.out + "/apt/lists/a_i18n_Translation-de.xz";
  std::ofstream(bad) << "this is no xz";
  EXPECT_THAT(BuildDebianCorpus(options_),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr(bad)));
}

TEST_F(DebianCorpusTest, NamesAFolderItCannotMake) {
  std::ofstream(folder_ + "file") << "x";
  options_.out = folder_ + "file/out";
  EXPECT_THAT(
      BuildDebianCorpus(options_),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("file/out")));
}

// It would be one named "s3:".
TEST_F(DebianCorpusTest, MakesNoFolderForAnObjectStore) {
  MakeAptGet("exit 1\n");
  options_.out = "s3://bucket/data";
  EXPECT_THAT(BuildDebianCorpus(options_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("expected a path of a disk")));
  EXPECT_FALSE(std::filesystem::exists("s3:"));
}

TEST(DebianCorpusReportTest, AlignsItsTable) {
  DebianCorpusReport report;
  report.lines = {{"de", 12339, 126, 236}, {"pt_BR", 5746, 64, 98}};
  EXPECT_EQ(report.Table(),
            "language    train     dev    test\n"
            "de          12339     126     236\n"
            "pt_BR        5746      64      98\n"
            "all         18085     190     334\n");
}

}  // namespace
}  // namespace gshard
