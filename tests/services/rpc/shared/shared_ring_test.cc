#include "services/rpc/shared/shared_ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>

#include "services/base/random.h"
#include "services/rpc/shared/shared_bell.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

constexpr size_t kRingBytes = kMinRingBytes;

// Both parties of a shared memory, and the ring from its creator to the other.
class SharedRingTest : public ::testing::Test {
 protected:
  SharedRingTest() {
    auto mine = SharedMemory::Create(kRingBytes, account_);
    EXPECT_OK(mine);
    mine_ = *std::move(mine);
    auto theirs = SharedMemory::Open(mine_->offer(), account_);
    EXPECT_OK(theirs);
    theirs_ = *std::move(theirs);
    writer_ = std::make_unique<SharedRingWriter>(*mine_);
    reader_ = std::make_unique<SharedRingReader>(*theirs_);
  }

  // Byte i of the transferred data.
  static char Byte(uint64_t i) {
    return static_cast<char>(RandomBelow(3, i, 256));
  }

  MemoryAccount account_ = int64_t{1} << 20;
  std::unique_ptr<SharedMemory> mine_, theirs_;
  std::unique_ptr<SharedRingWriter> writer_;
  std::unique_ptr<SharedRingReader> reader_;
};

TEST_F(SharedRingTest, CarriesBytesInOrderAroundItsEnd) {
  uint64_t put = 0, got = 0;
  for (uint64_t turn = 0; got < 10 * kRingBytes; ++turn) {
    ASSERT_OK_AND_ASSIGN(const size_t room, writer_->Room());
    ASSERT_EQ(room, kRingBytes - (put - got));
    std::string bytes(std::min<size_t>(room, RandomBelow(1, turn, kRingBytes)),
                      0);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = Byte(put + i);
    writer_->Put(bytes.data(), bytes.size());
    writer_->Flush();
    put += bytes.size();
    ASSERT_OK_AND_ASSIGN(const size_t available, reader_->Available());
    ASSERT_EQ(available, put - got);
    bytes.resize(std::min<size_t>(available, RandomBelow(2, turn, kRingBytes)));
    reader_->Get(bytes.data(), bytes.size());
    reader_->Release();
    for (const char byte : bytes) ASSERT_EQ(byte, Byte(got++));
    ASSERT_EQ(reader_->count(), got);
  }
}

TEST_F(SharedRingTest, IsFullAndEmpty) {
  const std::string all(kRingBytes, 'x');
  EXPECT_EQ(reader_->Available().value(), 0);
  writer_->Put(all.data(), kRingBytes);
  writer_->Flush();
  EXPECT_EQ(writer_->Room().value(), 0);
  EXPECT_EQ(reader_->Available().value(), kRingBytes);
  std::string got(kRingBytes, ' ');
  reader_->Get(got.data(), kRingBytes);
  EXPECT_EQ(writer_->Room().value(), 0);
  reader_->Release();
  EXPECT_EQ(writer_->Room().value(), kRingBytes);
  EXPECT_EQ(got, all);
}

// Counts that the ring cannot have are errors, whatever the peer writes.
TEST_F(SharedRingTest, CountsThatCannotBeAreErrors) {
  const std::string some(1000, 'x');
  writer_->Put(some.data(), some.size());
  writer_->Flush();
  std::string got(400, ' ');
  reader_->Get(got.data(), got.size());
  reader_->Release();
  for (const uint64_t written :
       {uint64_t{0}, uint64_t{399}, uint64_t{400 + kRingBytes + 1},
        uint64_t{1} << 63, UINT64_MAX}) {
    mine_->words(SharedMemory::kOfferer).written = written;
    EXPECT_THAT(reader_->Available().status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("says to have written")))
        << written;
  }
  mine_->words(SharedMemory::kOfferer).written = 400 + kRingBytes;
  EXPECT_EQ(reader_->Available().value(), kRingBytes);
  for (const uint64_t read :
       {uint64_t{1001}, uint64_t{1} << 63, UINT64_MAX - kRingBytes}) {
    theirs_->words(SharedMemory::kOpener).read = read;
    EXPECT_THAT(writer_->Room().status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("says to have read")))
        << read;
  }
  // Bytes that were put but not yet flushed count, too.
  theirs_->words(SharedMemory::kOpener).read = 1000;
  ASSERT_EQ(writer_->Room().value(), kRingBytes);
  const std::string all(kRingBytes, 'x');
  writer_->Put(all.data(), kRingBytes);
  theirs_->words(SharedMemory::kOpener).read = 999;
  EXPECT_FALSE(writer_->Room().ok());
}

TEST_F(SharedRingTest, SleepersAreWokenByWhatTheyWant) {
  std::thread echo([this] {
    SharedMemory::Words& words = theirs_->words(SharedMemory::kOpener);
    SharedRingWriter back(*theirs_);
    for (char next = 0; next < 100; ++next) {
      while (reader_->Available().value() == 0) {
        const uint32_t heard = words.bell;
        AnnounceSleep(words, kWantsBytes);
        if (reader_->Available().value() > 0) break;
        SleepUntilRung(words, heard, std::nullopt);
      }
      char byte = -1;
      reader_->Get(&byte, 1);
      reader_->Release();
      EXPECT_EQ(byte, next);
      back.Put(&byte, 1);
      back.Flush();
    }
  });
  SharedMemory::Words& words = mine_->words(SharedMemory::kOfferer);
  SharedRingReader back(*mine_);
  for (char next = 0; next < 100; ++next) {
    writer_->Put(&next, 1);
    writer_->Flush();
    while (back.Available().value() == 0) {
      const uint32_t heard = words.bell;
      AnnounceSleep(words, kWantsBytes);
      if (back.Available().value() > 0) break;
      SleepUntilRung(words, heard, std::nullopt);
    }
    char byte = -1;
    back.Get(&byte, 1);
    back.Release();
    EXPECT_EQ(byte, next);
  }
  echo.join();
}

}  // namespace
}  // namespace gshard
