#include "services/data/pair_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/services/checkpoint/scratch_directory.h"
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

// Of two files; the largest values that there are among them.
std::vector<PairEntry> Entries() {
  return {{.place = 0 << 16 | 9,
           .source_less1 = 2,
           .target_less1 = 1,
           .language = 0,
           .file = 0},
          {.place = 11 << 16 | 0xFFFF,
           .source_less1 = 0xFFFF,
           .target_less1 = 0xFFFF,
           .language = 1,
           .file = 0},
          {.place = 0xFFFFFFFFFFFFull << 16 | 0,
           .source_less1 = 0,
           .target_less1 = 0,
           .language = 1,
           .file = 0xFFFF}};
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
  ASSERT_EQ(index->entries().size(), 3u);
  EXPECT_EQ(index->entries()[1].offset(), 11u);
  EXPECT_EQ(index->entries()[1].bytes(), 65536u);
  EXPECT_EQ(index->entries()[1].source(), 65536);
  EXPECT_EQ(index->entries()[2].offset(), (uint64_t{1} << 48) - 1);
  EXPECT_EQ(index->entries()[2].file, 0xFFFF);
}

TEST(PairIndexTest, LargeOnesAreWrittenInParts) {
  const ScratchDirectory scratch;
  std::vector<PairEntry> entries(200'000);  // 3 MiB
  for (size_t i = 0; i < entries.size(); ++i) {
    entries[i] = {.place = (i * 100) << 16 | 49,
                  .source_less1 = static_cast<uint16_t>(i % 64),
                  .target_less1 = 3,
                  .language = 1,
                  .file = 0};
  }
  Write(scratch / "index", entries, Info(200'000));
  ASSERT_OK_AND_ASSIGN(const auto index,
                       PairIndex::Open(scratch / "index", "the key"));
  EXPECT_EQ(index->entries()[123'456].offset(), 12'345'600u);
  EXPECT_EQ(index->entries()[199'999].source(), 199'999 % 64 + 1);
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

// Of whom the digest is right, but not what they say.
TEST(PairIndexTest, RefusesEntriesThatMakeNoSense) {
  const ScratchDirectory scratch;
  const std::string path = scratch / "index";
  std::vector<PairEntry> overlapping = Entries();
  overlapping[1].place = 9 << 16;
  std::vector<PairEntry> back = Entries();
  std::swap(back[1], back[2]);
  std::vector<PairEntry> unknown = Entries();
  unknown[0].language = 2;
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

}  // namespace
}  // namespace gshard
