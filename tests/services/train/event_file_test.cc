#include "services/train/event_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "services/train/crc32c.h"
#include "tests/services/storage/scratch_directory.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

uint64_t Fixed(const std::string& bytes, size_t at, int num_bytes) {
  uint64_t value = 0;
  for (int i = 0; i < num_bytes; ++i) {
    value |= uint64_t{static_cast<unsigned char>(bytes.at(at + i))} << (8 * i);
  }
  return value;
}

// The payloads of all records, after checking both checksums of each.
std::vector<std::string> ReadRecords(const std::string& bytes) {
  std::vector<std::string> payloads;
  size_t at = 0;
  while (at < bytes.size()) {
    const uint64_t length = Fixed(bytes, at, 8);
    EXPECT_EQ(Fixed(bytes, at + 8, 4), MaskedCrc32c(bytes.substr(at, 8)));
    payloads.push_back(bytes.substr(at + 12, length));
    EXPECT_EQ(Fixed(bytes, at + 12 + length, 4), MaskedCrc32c(payloads.back()));
    at += 16 + length;
  }
  EXPECT_EQ(at, bytes.size());
  return payloads;
}

// Events in protobuf's wire format, by hand: key = field << 3 | type.
TEST(EventFileTest, EventsAreTheseBytes) {
  EXPECT_EQ(EncodeVersionEvent(1.5),
            std::string("\x09\0\0\0\0\0\0\xf8\x3f"  // 1: fixed64 1.5
                        "\x1a\x0d"
                        "brain.Event:2",  // 3: 13 bytes
                        24));
  EXPECT_EQ(
      EncodeScalarEvent(1.5, 300, {{"loss", 2.0f}, {"a/b", -1.0f}}),
      std::string("\x09\0\0\0\0\0\0\xf8\x3f"            // 1: fixed64 1.5
                  "\x10\xac\x02"                        // 2: varint 300
                  "\x2a\x19"                            // 5: 25 bytes
                  "\x0a\x0b\x0a\x04loss\x15\0\0\0\x40"  // 1: tag, value 2.0
                  "\x0a\x0a\x0a\x03"
                  "a/b\x15\0\0\x80\xbf",
                  39));
}

// A record whose checksums were computed independently of this code.
TEST(EventFileTest, RecordsAreTheseBytes) {
  EXPECT_EQ(EncodeRecord("123456789"), std::string("\x09\0\0\0\0\0\0\0", 8) +
                                           std::string("\x37\xf9\x71\x39", 4) +
                                           "123456789" +
                                           std::string("\xe5\xb0\x8a\xc7", 4));
}

TEST(EventFileTest, WritesWhatTensorBoardReads) {
  ScratchDirectory scratch;
  ASSERT_OK_AND_ASSIGN(
      const auto file,
      EventFile::Create(scratch / "runs/demo", "host", 1700000000.9));
  EXPECT_EQ(file->path(),
            scratch / "runs/demo/events.out.tfevents.1700000000.host");
  ASSERT_OK(file->Add(1700000001.0, 1, {{"loss", 3.5f}}));
  ASSERT_OK(file->Add(1700000002.0, 2, {{"loss", 3.25f}, {"balance", 1.1f}}));
  // The records are readable before the file is closed.
  EXPECT_THAT(
      ReadRecords(Slurp(file->path())),
      ElementsAre(EncodeVersionEvent(1700000000.9),
                  EncodeScalarEvent(1700000001.0, 1, {{"loss", 3.5f}}),
                  EncodeScalarEvent(1700000002.0, 2,
                                    {{"loss", 3.25f}, {"balance", 1.1f}})));
}

TEST(EventFileTest, ErrorsAreReported) {
  ScratchDirectory scratch;
  Spill(scratch / "file", "");
  EXPECT_THAT(
      EventFile::Create(scratch / "file", "host", 1.0),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("file")));
}

}  // namespace
}  // namespace gshard
