#include "services/storage/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "services/storage/storage.h"
#include "tests/services/storage/scratch_directory.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(FileTest, ReadsWhatWasWritten) {
  ScratchDirectory scratch;
  ASSERT_OK_AND_ASSIGN(const auto output, OutputFile::Create(scratch / "a"));
  ASSERT_OK(output->Append("hello "));
  ASSERT_OK(output->Append("world"));
  ASSERT_OK(output->WriteAt(0, "J"));
  ASSERT_OK(output->Append("!"));
  ASSERT_OK(output->Sync());
  ASSERT_OK(output->Close());
  ASSERT_OK_AND_ASSIGN(const auto input, InputFile::Open(scratch / "a"));
  EXPECT_EQ(input->size(), 12u);
  std::string part(5, ' ');
  ASSERT_OK(input->ReadAt(6, part.data(), part.size()));
  EXPECT_EQ(part, "world");
  ASSERT_OK_AND_ASSIGN(const std::string all, ReadFile(scratch / "a", 12));
  EXPECT_EQ(all, "Jello world!");
}

TEST(FileTest, ReadingBeyondTheEndIsDataLoss) {
  ScratchDirectory scratch;
  Spill(scratch / "a", "1234");
  ASSERT_OK_AND_ASSIGN(const auto input, InputFile::Open(scratch / "a"));
  char buffer[8];
  EXPECT_THAT(input->ReadAt(2, buffer, 3),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("ends at byte 4, 1 bytes too early")));
  ASSERT_OK(input->ReadAt(4, buffer, 0));
}

TEST(FileTest, ErrorsCarryTheirCode) {
  ScratchDirectory scratch;
  EXPECT_THAT(InputFile::Open(scratch / "none"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none")));
  EXPECT_THAT(InputFile::Open(scratch.path()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("not a regular file")));
  EXPECT_THAT(OutputFile::Create(scratch / "no/such"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no/such")));
  Spill(scratch / "a", "12345");
  EXPECT_THAT(ReadFile(scratch / "a", 4),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("expected at most 4 bytes, got 5")));
  EXPECT_THAT(MakeDirectories(scratch / "a"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("a")));
}

TEST(FileTest, APipeIsRefusedAtOnce) {
  ScratchDirectory scratch;
  ASSERT_EQ(::mkfifo((scratch / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(InputFile::Open(scratch / "pipe"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("not a regular file")));
}

TEST(FileTest, AFullDiskIsResourceExhausted) {
  ASSERT_OK_AND_ASSIGN(const auto output, OutputFile::Create("/dev/full"));
  EXPECT_THAT(output->Append("x"),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("write '/dev/full': No space left")));
}

TEST(FileTest, WritesAtomicallyOverAnOldFile) {
  ScratchDirectory scratch;
  ASSERT_OK(WriteFileAtomically(scratch / "a", "old"));
  ASSERT_OK(WriteFileAtomically(scratch / "a", "new"));
  EXPECT_EQ(Slurp(scratch / "a"), "new");
  ASSERT_OK_AND_ASSIGN(const auto names, ListDirectory(scratch.path()));
  EXPECT_THAT(names, ElementsAre("a"));
}

TEST(FileTest, RenamesOntoNothingThatHoldsSomething) {
  ScratchDirectory scratch;
  ASSERT_OK(MakeDirectories(scratch / "from"));
  ASSERT_OK(MakeDirectories(scratch / "to/inside"));
  EXPECT_THAT(RenamePath(scratch / "from", scratch / "to"),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("to")));
  EXPECT_TRUE(IsDirectory(scratch / "from"));
}

TEST(FileTest, RemovesTrees) {
  ScratchDirectory scratch;
  ASSERT_OK(MakeDirectories(scratch / "a/b/c"));
  Spill(scratch / "a/b/file", "x");
  ASSERT_OK(RemoveTree(scratch / "a"));
  ASSERT_OK(RemoveTree(scratch / "a"));
  ASSERT_OK_AND_ASSIGN(const auto names, ListDirectory(scratch.path()));
  EXPECT_THAT(names, IsEmpty());
}

}  // namespace
}  // namespace gshard
