#include "services/data/pair_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>

#include "services/base/check.h"
#include "tests/services/storage/scratch_directory.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

PairIndexInfo Info(int64_t pairs) {
  PairIndexInfo info{.key = "the key",
                     .text_digest = std::string(64, 'd'),
                     .languages = {"de", "pt_BR"},
                     .report = {}};
  info.report.pairs = pairs;
  for (int i = 0; i < kBadLineReasons; ++i) info.report.bad[i] = 10 + i;
  info.report.left_out_long = 5;
  return info;
}

// Entries of two files, with the largest values of the fields among them.
std::vector<PairEntry> Entries() {
  return {{.place = 0 << 16 | 9,
           .shape = {.source_less1 = 2,
                     .target_less1 = 1,
                     .language = 0,
                     .file = 0}},
          {.place = 11 << 16 | 0xFFFF,
           .shape = {.source_less1 = 0xFFFF,
                     .target_less1 = 0xFFFF,
                     .language = 1,
                     .file = 0}},
          {.place = 0xFFFFFFFFFFFFull << 16 | 0,
           .shape = {.source_less1 = 0,
                     .target_less1 = 0,
                     .language = 1,
                     .file = 0xFFFF}}};
}

void Write(const std::string& path, const std::vector<PairEntry>& entries,
           const PairIndexInfo& info) {
  ASSERT_OK_AND_ASSIGN(const auto writer, PairIndexWriter::Create(path));
  for (const PairEntry& entry : entries) ASSERT_OK(writer->Add(entry));
  ASSERT_OK(writer->Finish(info));
}

TEST(PairIndexTest, HoldsWhatWasWritten) {
  const ScratchDirectory scratch;
  Write(scratch / "index", Entries(), Info(3));
  ASSERT_OK_AND_ASSIGN(const auto index,
                       PairIndex::Open(scratch / "index", "the key"));
  EXPECT_EQ(index->info(), Info(3));
  ASSERT_EQ(index->shapes().size(), 3u);
  EXPECT_EQ(index->shapes()[1].source(), 65536);
  EXPECT_EQ(index->shapes()[2].file, 0xFFFF);
  ASSERT_EQ(index->file_ends().size(), 65536u);
  EXPECT_EQ(index->file_ends()[0], 11u + 65536u);
  EXPECT_EQ(index->file_ends()[1], 0u);
  EXPECT_EQ(index->file_ends()[65535], uint64_t{1} << 48);
  ASSERT_OK_AND_ASSIGN(const auto entries, index->Read({2, 1}));
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].offset(), (uint64_t{1} << 48) - 1);
  EXPECT_EQ(entries[1].offset(), 11u);
  EXPECT_EQ(entries[1].bytes(), 65536u);
}

TEST(PairIndexTest, LargeOnesAreWrittenInParts) {
  const ScratchDirectory scratch;
  std::vector<PairEntry> entries(200'000);  // 3 MiB
  for (size_t i = 0; i < entries.size(); ++i) {
    entries[i] = {.place = (i * 100) << 16 | 49,
                  .shape = {.source_less1 = static_cast<uint16_t>(i % 64),
                            .target_less1 = 3,
                            .language = 1,
                            .file = 0}};
  }
  Write(scratch / "index", entries, Info(200'000));
  ASSERT_OK_AND_ASSIGN(const auto index,
                       PairIndex::Open(scratch / "index", "the key"));
  ASSERT_OK_AND_ASSIGN(const auto read, index->Read({123'456}));
  EXPECT_EQ(read[0].offset(), 12'345'600u);
  EXPECT_EQ(index->shapes()[199'999].source(), 199'999 % 64 + 1);
}

TEST(PairIndexTest, AnyByteThatIsAnotherIsNoticed) {
  const ScratchDirectory scratch;
  const std::string path = scratch / "index";
  Write(path, Entries(), Info(3));
  const std::string sound = Slurp(path);
  for (size_t i = 0; i < sound.size(); ++i) {
    std::string damaged = sound;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    Spill(path, damaged);
    EXPECT_THAT(PairIndex::Open(path, "the key"),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path)))
        << "byte " << i;
  }
  for (size_t size = 0; size < sound.size(); ++size) {
    Spill(path, sound.substr(0, size));
    EXPECT_THAT(PairIndex::Open(path, "the key"),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path)))
        << size << " bytes";
  }
  Spill(path, sound + "x");
  EXPECT_THAT(PairIndex::Open(path, "the key"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path)));
}

// Inconsistent contents are refused even if the digest is right.
TEST(PairIndexTest, RefusesEntriesThatMakeNoSense) {
  const ScratchDirectory scratch;
  const std::string path = scratch / "index";
  std::vector<PairEntry> overlapping = Entries();
  overlapping[1].place = 9 << 16;
  std::vector<PairEntry> back = Entries();
  std::swap(back[1], back[2]);
  std::vector<PairEntry> unknown = Entries();
  unknown[0].shape.language = 2;
  for (const auto& entries : {overlapping, back, unknown}) {
    Write(path, entries, Info(3));
    EXPECT_THAT(PairIndex::Open(path, "the key"),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("not sound")));
  }
  Write(path, Entries(), Info(4));
  EXPECT_THAT(PairIndex::Open(path, "the key"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("description")));
  PairIndexInfo odd = Info(3);
  odd.languages = {"d e"};
  Write(path, Entries(), odd);
  EXPECT_THAT(PairIndex::Open(path, "the key"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("description")));
}

TEST(PairIndexTest, RefusesThatOfAnotherText) {
  const ScratchDirectory scratch;
  Write(scratch / "index", Entries(), Info(3));
  EXPECT_THAT(PairIndex::Open(scratch / "index", "another key"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("another text")));
  EXPECT_THAT(PairIndex::Open(scratch / "none", "the key"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none")));
  EXPECT_NE(PairIndexName("a"), PairIndexName("b"));
}

ino_t Inode(const std::string& path) {
  struct stat status;
  CHECK(stat(path.c_str(), &status) == 0);
  return status.st_ino;
}

// If several routers build an index on a shared disk, the first file stays.
TEST(PairIndexTest, TheFirstThatIsFinishedIsTakenByAll) {
  const ScratchDirectory scratch;
  const std::string path = scratch / "index";
  ASSERT_OK_AND_ASSIGN(auto first, PairIndexWriter::Create(path));
  ASSERT_OK_AND_ASSIGN(auto second, PairIndexWriter::Create(path));
  for (const PairEntry& entry : Entries()) {
    ASSERT_OK(first->Add(entry));
    ASSERT_OK(second->Add(entry));
  }
  ASSERT_OK(first->Finish(Info(3)));
  const ino_t inode = Inode(path);
  ASSERT_OK_AND_ASSIGN(const auto index, PairIndex::Open(path, "the key"));
  ASSERT_OK(second->Finish(Info(3)));
  EXPECT_EQ(Inode(path), inode);
  EXPECT_OK(index->Read({0, 1, 2}));
  first.reset();
  second.reset();
  ASSERT_OK_AND_ASSIGN(const auto names, ListDirectory(scratch.path()));
  EXPECT_THAT(names, ::testing::ElementsAre("index"));
}

TEST(PairIndexTest, WhatIsDamagedIsReplaced) {
  const ScratchDirectory scratch;
  const std::string path = scratch / "index";
  Spill(path, "no index");
  Write(path, Entries(), Info(3));
  EXPECT_OK(PairIndex::Open(path, "the key"));
  // An index of another text, or a folder in its place, is an error.
  EXPECT_THAT(PairIndex::Open(path, "another key"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("another text")));
  ASSERT_OK(MakeDirectories(scratch / "folder"));
  ASSERT_OK_AND_ASSIGN(const auto writer,
                       PairIndexWriter::Create(scratch / "folder"));
  EXPECT_THAT(writer->Finish(Info(0)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("regular file")));
}

// Makes these system calls fail in this process from here on.
void Refuse(const std::vector<uint32_t>& calls, uint32_t error_number) {
  std::vector<sock_filter> program = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const uint32_t call : calls) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1));
    program.push_back(
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error_number));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog filter = {.len = static_cast<uint16_t>(program.size()),
                             .filter = program.data()};
  CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
}

// The first file stays without hard links and RENAME_NOREPLACE, too, which some
// disks, kernels and servers lack.
TEST(PairIndexDeathTest, NeedsNeitherLinksNorRenamesThatReplaceNothing) {
  const ScratchDirectory scratch;
  const std::string path = scratch / "index";
  for (const uint32_t error_number : {EPERM, EINVAL, ENOSYS, EOPNOTSUPP}) {
    const auto write_twice = [&] {
      Refuse({SYS_link, SYS_linkat, SYS_renameat2}, error_number);
      Write(path, Entries(), Info(3));
      const ino_t first = Inode(path);
      Write(path, Entries(), Info(3));
      _exit(!::testing::Test::HasFailure() && Inode(path) == first ? 0 : 1);
    };
    EXPECT_EXIT(write_twice(), ::testing::ExitedWithCode(0), "");
    EXPECT_OK(PairIndex::Open(path, "the key"));
    std::filesystem::remove(path);
  }
}

// A damaged index is replaced without being removed first, as another process
// may have repaired it.
TEST(PairIndexTest, WhatIsDamagedIsNotRemovedFirst) {
  const ScratchDirectory scratch;
  const std::string path = scratch / "index";
  Spill(path, "no index");
  const int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  ASSERT_GE(inotify_add_watch(watch, scratch.path().c_str(), IN_DELETE), 0);
  Write(path, Entries(), Info(3));
  EXPECT_OK(PairIndex::Open(path, "the key"));
  char event;
  EXPECT_EQ(read(watch, &event, 1), -1);
  EXPECT_EQ(errno, EAGAIN);  // no event
  close(watch);
}

// An index that is truncated or overwritten while open is an error; a memory
// mapping would end the process with SIGBUS.
TEST(PairIndexTest, AFileThatIsCutOrChangedUnderItIsAnError) {
  const ScratchDirectory scratch;
  const std::string path = scratch / "index";
  std::vector<PairEntry> entries(10'000);
  for (size_t i = 0; i < entries.size(); ++i) {
    entries[i] = {.place = (i * 100) << 16 | 49, .shape = {}};
  }
  Write(path, entries, Info(10'000));
  ASSERT_OK_AND_ASSIGN(const auto index, PairIndex::Open(path, "the key"));
  const std::string sound = Slurp(path);
  const auto changed =
      StatusIs(absl::StatusCode::kFailedPrecondition,
               ::testing::AllOf(HasSubstr(path), HasSubstr("has changed")));
  std::filesystem::resize_file(path, 4096);
  EXPECT_THAT(index->Read({9'999}), changed);
  EXPECT_THAT(index->Read({0}), changed);
  // The file is overwritten in place, with other entries.
  std::fstream(path, std::ios::in | std::ios::out)
      << sound.substr(0, 32) << std::string(160'000, '\1');
  EXPECT_THAT(index->Read({5}), changed);
  // An open index outlives the removal of its file.
  ASSERT_OK_AND_ASSIGN(const auto writer, PairIndexWriter::Create(path));
  for (const PairEntry& entry : entries) ASSERT_OK(writer->Add(entry));
  ASSERT_OK(writer->Finish(Info(10'000)));
  ASSERT_OK_AND_ASSIGN(const auto again, PairIndex::Open(path, "the key"));
  ASSERT_OK(RemoveTree(path));
  EXPECT_OK(again->Read({9'999}));
}

TEST(PairIndexTest, LeavesNothingUnlessFinished) {
  const ScratchDirectory scratch;
  {
    ASSERT_OK_AND_ASSIGN(const auto writer,
                         PairIndexWriter::Create(scratch / "index"));
    ASSERT_OK(writer->Add(Entries()[0]));
  }
  ASSERT_OK_AND_ASSIGN(const auto names, ListDirectory(scratch.path()));
  EXPECT_THAT(names, ::testing::IsEmpty());
}

TEST(PairIndexTest, RemovesWhatKilledProcessesLeft) {
  const ScratchDirectory scratch;
  const auto leave = [&](const std::string& name, int minutes) {
    Spill(scratch / name, "half an index");
    std::filesystem::last_write_time(
        scratch / name, std::filesystem::file_time_type::clock::now() -
                            std::chrono::minutes(minutes));
  };
  leave("index.0123abcd.tmp", 61);
  leave("index.4567abcd.tmp", 50);  // perhaps being written
  leave("index2.0123abcd.tmp", 61);
  leave("index.0123abcd", 61);
  Write(scratch / "index", Entries(), Info(3));
  ASSERT_OK_AND_ASSIGN(const auto names, ListDirectory(scratch.path()));
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("index", "index.0123abcd",
                                                     "index.4567abcd.tmp",
                                                     "index2.0123abcd.tmp"));
}

}  // namespace
}  // namespace gshard
