#include "services/data/streamed_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <numeric>
#include <set>

#include "tests/services/data/sample_text.h"
#include "tests/services/storage/fake_object_store.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class StreamedTextTest : public ::testing::Test {
 protected:
  void SetUp() override { Spill(path_, SampleLines(50, 3)); }

  absl::StatusOr<std::unique_ptr<StreamedText>> Open(
      const std::vector<std::string>& directories) {
    return StreamedText::Open({{.path = path_, .language = "", .weight = 1.0}},
                              SampleTokenizers(), {}, directories);
  }
  absl::StatusOr<std::unique_ptr<StreamedText>> Open() {
    return Open({directory_});
  }
  std::string IndexPath() {
    const auto names = ListDirectory(directory_);
    CHECK(names.ok() && names->size() == 1);
    return directory_ + "/" + names->front();
  }
  static ino_t Inode(const std::string& path) {
    struct stat status;
    CHECK(stat(path.c_str(), &status) == 0);
    return status.st_ino;
  }

  const ScratchDirectory scratch_;
  const std::string path_ = scratch_ / "text.tsv";
  const std::string directory_ = scratch_ / "index";
};

TEST_F(StreamedTextTest, TheIndexIsMadeOnce) {
  ASSERT_OK_AND_ASSIGN(const auto first, Open());
  const std::string index = IndexPath();
  const ino_t inode = Inode(index);
  ASSERT_OK_AND_ASSIGN(const auto again, Open());
  EXPECT_EQ(Inode(index), inode);
  EXPECT_EQ(again->digest(), first->digest());
  EXPECT_EQ(again->report(), first->report());
  // 16 bytes per pair, and a description of constant size.
  EXPECT_LE(Slurp(index).size(), size_t(16 * first->size() + 400));
  EXPECT_EQ(first->memory_bytes(), 8 * first->size());
}

TEST_F(StreamedTextTest, ManyThatMakeItAtATimeHaveOne) {
  std::vector<std::future<absl::StatusOr<std::unique_ptr<StreamedText>>>> texts;
  for (int i = 0; i < 8; ++i) {
    texts.push_back(std::async(std::launch::async, [this] { return Open(); }));
  }
  std::set<std::string> digests;
  for (auto& text : texts) {
    const auto opened = text.get();
    ASSERT_OK(opened);
    ASSERT_OK((*opened)->Read({0, (*opened)->size() - 1}));
    digests.insert((*opened)->digest());
  }
  EXPECT_EQ(digests.size(), 1u);
  IndexPath();  // checks that there is one
}

// Reads fail if another process truncates the index, as on a shared disk.
TEST_F(StreamedTextTest, AnIndexThatIsCutUnderItIsAnError) {
  ASSERT_OK_AND_ASSIGN(const auto text, Open());
  ASSERT_OK(text->Read({text->size() - 1}));
  std::filesystem::resize_file(IndexPath(), 64);
  EXPECT_THAT(
      text->Read({text->size() - 1}),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               AllOf(HasSubstr(IndexPath()), HasSubstr("has changed"))));
  // The next open rebuilds the index.
  ASSERT_OK_AND_ASSIGN(const auto again, Open());
  EXPECT_OK(again->Read({again->size() - 1}));
}

TEST_F(StreamedTextTest, ADamagedIndexIsMadeAnew) {
  ASSERT_OK_AND_ASSIGN(const auto first, Open());
  const std::string sound = Slurp(IndexPath());
  Poke(IndexPath(), 40, '\x7f');
  ASSERT_OK_AND_ASSIGN(const auto again, Open());
  EXPECT_EQ(Slurp(IndexPath()), sound);
  EXPECT_EQ(again->report(), first->report());
}

TEST_F(StreamedTextTest, AnotherVersionHasAnotherIndex) {
  ASSERT_OK_AND_ASSIGN(const auto first, Open());
  Spill(path_, SampleLines(80, 3));
  ASSERT_OK_AND_ASSIGN(const auto again, Open());
  EXPECT_GT(again->size(), first->size());
  EXPECT_NE(again->digest(), first->digest());
  ASSERT_OK_AND_ASSIGN(const auto names, ListDirectory(directory_));
  EXPECT_EQ(names.size(), 2u);
}

TEST_F(StreamedTextTest, TheDigestIsOfTheBytesNotOfTheirPlace) {
  ASSERT_OK_AND_ASSIGN(const auto first, Open());
  Spill(scratch_ / "copy", Slurp(path_));
  ASSERT_OK_AND_ASSIGN(
      const auto copy,
      StreamedText::Open(
          {{.path = scratch_ / "copy", .language = "", .weight = 1.0}},
          SampleTokenizers(), {}, {directory_}));
  EXPECT_EQ(copy->digest(), first->digest());
  Poke(scratch_ / "copy", 3, 'Q');
  ASSERT_OK_AND_ASSIGN(
      const auto other,
      StreamedText::Open(
          {{.path = scratch_ / "copy", .language = "", .weight = 1.0}},
          SampleTokenizers(), {}, {directory_}));
  EXPECT_NE(other->digest(), first->digest());
}

TEST_F(StreamedTextTest, TheFirstDirectoryThatWorksIsTaken) {
  // A directory cannot be created below a file.
  ASSERT_OK_AND_ASSIGN(const auto text,
                       Open({path_ + "/no/index", directory_}));
  EXPECT_TRUE(std::filesystem::exists(IndexPath()));
  EXPECT_THAT(Open({path_ + "/no/index"}).status().message(),
              HasSubstr("no place for the index"));
  // An existing index is found in any of the directories.
  ASSERT_OK(Open({scratch_ / "elsewhere", directory_}));
  EXPECT_FALSE(std::filesystem::exists(scratch_ / "elsewhere"));
}

rlimit no_limit;

// A disk fills up while the index is written there, simulated by a limit to the
// sizes of files, which is lifted when it is met.
TEST_F(StreamedTextTest, ADirectoryThatFillsUpIsPassedOver) {
  SampleTokenizers();  // which are trained when they are first asked for
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &no_limit), 0);
  struct sigaction before, lift = {};
  lift.sa_handler = [](int) { ::setrlimit(RLIMIT_FSIZE, &no_limit); };
  ASSERT_EQ(::sigaction(SIGXFSZ, &lift, &before), 0);
  rlimit small = no_limit;
  small.rlim_cur = 64;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto text = Open({scratch_ / "full", directory_});
  ::setrlimit(RLIMIT_FSIZE, &no_limit);
  ::sigaction(SIGXFSZ, &before, nullptr);
  ASSERT_OK(text);
  EXPECT_TRUE(std::filesystem::exists(IndexPath()));
  EXPECT_TRUE(std::filesystem::is_empty(scratch_ / "full"));
  // What is open outlives its name.
  std::filesystem::remove(IndexPath());
  EXPECT_OK((*text)->Read({0}));
}

TEST_F(StreamedTextTest, AChangedFileIsAnError) {
  const std::string before = Slurp(path_);
  const auto changed = [&] {
    return StatusIs(absl::StatusCode::kFailedPrecondition,
                    AllOf(HasSubstr(path_), HasSubstr("has changed")));
  };
  {
    ASSERT_OK_AND_ASSIGN(const auto text, Open());
    ASSERT_OK(text->Read({0}));
    Spill(path_, before + "de\tnoch eins\tone more\n");
    EXPECT_THAT(text->Read({0}), changed());
  }
  {
    ASSERT_OK_AND_ASSIGN(const auto text, Open());
    Spill(path_, before.substr(0, before.size() / 2));
    EXPECT_THAT(text->Read({text->size() - 1}), changed());
  }
  {
    // The same size, but a newer time.
    Spill(path_, before);
    ASSERT_OK_AND_ASSIGN(const auto text, Open());
    std::filesystem::last_write_time(
        path_,
        std::filesystem::last_write_time(path_) + std::chrono::seconds(1));
    EXPECT_THAT(text->Read({0}), changed());
  }
  {
    // Another file with the same size and time.
    Spill(path_, before);
    ASSERT_OK_AND_ASSIGN(const auto text, Open());
    const auto time = std::filesystem::last_write_time(path_);
    Spill(scratch_ / "other", before);
    std::filesystem::last_write_time(scratch_ / "other", time);
    std::filesystem::rename(scratch_ / "other", path_);
    EXPECT_THAT(text->Read({0}), changed());
    std::filesystem::remove(path_);
    EXPECT_THAT(text->Read({0}),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr(path_)));
  }
}

// A changed line is found even if the file's size and time are the same.
TEST_F(StreamedTextTest, ALineThatIsAnotherIsAnError) {
  ASSERT_OK_AND_ASSIGN(const auto text, Open());
  ASSERT_OK_AND_ASSIGN(const auto pairs, text->Read({0}));
  const auto time = std::filesystem::last_write_time(path_);
  std::string lines = Slurp(path_);
  const size_t line = lines.find('\t');
  std::fill(lines.begin() + line + 1,
            lines.begin() + lines.find('\t', line + 1), 'q');
  std::ofstream(path_, std::ios::in | std::ios::out) << lines;
  std::filesystem::last_write_time(path_, time);
  EXPECT_THAT(text->Read({0}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("is not the one that was indexed")));
}

// Text in an object store.
class StreamedObjectTest : public ::testing::Test {
 protected:
  StreamedObjectTest() {
    store_.Use();
    store_.Set("bucket/text/train.tsv", lines_);
  }

  absl::StatusOr<std::unique_ptr<StreamedText>> Open(const std::string& path) {
    return StreamedText::Open({{.path = path, .language = "", .weight = 1.0}},
                              SampleTokenizers(), {}, {scratch_ / "index"});
  }

  const ScratchDirectory scratch_;
  FakeObjectStore store_;
  const std::string path_ = "s3://bucket/text/train.tsv";
  const std::string lines_ = SampleLines(300, 3);
};

TEST_F(StreamedObjectTest, IsReadAsAFileIsThroughFaultsThatPass) {
  using Fault = FakeObjectStore::Fault;
  std::atomic<int> requests = 0;
  store_.SetOnRequest([&](const std::string&) {
    constexpr Fault kFaults[] = {Fault::kReset, Fault::kTruncate,
                                 Fault::kSlowDown, Fault::kNone};
    return kFaults[requests++ % 4];
  });
  Spill(scratch_ / "text.tsv", lines_);
  ASSERT_OK_AND_ASSIGN(const auto file, Open(scratch_ / "text.tsv"));
  ASSERT_OK_AND_ASSIGN(const auto object, Open(path_));
  EXPECT_EQ(object->digest(), file->digest());
  EXPECT_EQ(object->report().pairs, file->report().pairs);
  std::vector<int32_t> all(file->size());
  std::iota(all.begin(), all.end(), 0);
  ASSERT_OK_AND_ASSIGN(const auto expected, file->Read(all));
  ASSERT_OK_AND_ASSIGN(const auto pairs, object->Read(all));
  ASSERT_EQ(pairs.size(), expected.size());
  for (size_t i = 0; i < pairs.size(); ++i) {
    EXPECT_EQ(pairs[i].source, expected[i].source);
    EXPECT_EQ(pairs[i].target, expected[i].target);
  }
  ASSERT_OK_AND_ASSIGN(const Corpus corpus, ReadCorpus(path_));
  EXPECT_EQ(corpus.pairs, ReadCorpus(scratch_ / "text.tsv")->pairs);
  EXPECT_GT(requests, 4);
}

// A rewritten object is an error even if only its tag differs, not its size or
// second of change.
TEST_F(StreamedObjectTest, OneThatIsWrittenAgainIsAnErrorAndHasAnotherIndex) {
  ASSERT_OK_AND_ASSIGN(const auto text, Open(path_));
  ASSERT_OK(text->Read({0}));
  std::string changed = lines_;
  changed[lines_.find('\t') + 1] = 'Q';
  store_.Set("bucket/text/train.tsv", changed);
  EXPECT_THAT(text->Read({text->size() - 1}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr(path_), HasSubstr("has changed"))));
  ASSERT_OK_AND_ASSIGN(const auto again, Open(path_));
  EXPECT_NE(again->digest(), text->digest());
  EXPECT_OK(again->Read({again->size() - 1}));
}

TEST_F(StreamedObjectTest, OneThatIsNotThereIsNamed) {
  EXPECT_THAT(
      Open("s3://bucket/none.tsv"),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("s3://bucket/none.tsv")));
}

}  // namespace
}  // namespace gshard
