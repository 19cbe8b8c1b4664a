#include "services/rpc/shared/shared_memory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <string>

#include "tests/integration/temporary_directory.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr size_t kRing = kMinRingBytes;

class SharedMemoryTest : public ::testing::Test {
 protected:
  SharedMemoryTest() {
    auto memory = SharedMemory::Create(kRing, account_);
    EXPECT_OK(memory);
    memory_ = *std::move(memory);
    offer_ = memory_->offer();
  }

  absl::Status Opened(const v1::SharedMemoryOffer& offer) {
    return SharedMemory::Open(offer, account_).status();
  }

  // The offer with another descriptor, which the test closes.
  v1::SharedMemoryOffer OfferOf(int descriptor) {
    EXPECT_GE(descriptor, 0);
    v1::SharedMemoryOffer offer = offer_;
    offer.set_file_descriptor(descriptor);
    return offer;
  }

  MemoryAccount account_{kMiB};
  std::unique_ptr<SharedMemory> memory_;
  v1::SharedMemoryOffer offer_;
};

TEST_F(SharedMemoryTest, IsTheSameForBoth) {
  ASSERT_OK_AND_ASSIGN(const auto other, SharedMemory::Open(offer_, account_));
  EXPECT_EQ(memory_->party(), SharedMemory::kOfferer);
  EXPECT_EQ(other->party(), SharedMemory::kOpener);
  for (const auto party : {SharedMemory::kOfferer, SharedMemory::kOpener}) {
    ASSERT_EQ(memory_->ring(party).size(), kRing);
    ASSERT_EQ(other->ring(party).size(), kRing);
    std::strcpy(memory_->ring(party).data() + kRing - 4, "abc");
    EXPECT_STREQ(other->ring(party).data() + kRing - 4, "abc");
    other->words(party).written = 7;
    EXPECT_EQ(memory_->words(party).written, 7);
  }
  EXPECT_NE(memory_->ring(SharedMemory::kOfferer).data(),
            other->ring(SharedMemory::kOfferer).data());
}

TEST_F(SharedMemoryTest, IsAccountedByBoth) {
  const int64_t one = account_.used();
  EXPECT_GE(one, static_cast<int64_t>(2 * kRing));
  {
    ASSERT_OK_AND_ASSIGN(const auto other,
                         SharedMemory::Open(offer_, account_));
    EXPECT_EQ(account_.used(), 2 * one);
  }
  memory_ = nullptr;
  EXPECT_EQ(account_.used(), 0);
  const MemoryAccount small(one - 1);
  for (const absl::Status& status :
       {SharedMemory::Create(kRing, small).status(),
        SharedMemory::Open(offer_, small).status()}) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                                 HasSubstr("may still be shared")));
  }
  EXPECT_EQ(small.used(), 0);
}

TEST_F(SharedMemoryTest, CannotChangeItsSize) {
  EXPECT_NE(ftruncate(offer_.file_descriptor(), 0), 0);
  EXPECT_NE(ftruncate(offer_.file_descriptor(), kMiB), 0);
}

TEST_F(SharedMemoryTest, IsNobodysOnceItWasWithdrawn) {
  memory_->Withdraw();
  EXPECT_THAT(Opened(offer_), StatusIs(absl::StatusCode::kNotFound,
                                       HasSubstr("cannot be found")));
}

TEST_F(SharedMemoryTest, IsOfOneUser) {
  EXPECT_THAT(
      SharedMemory::Open(offer_, account_, geteuid() + 1).status(),
      StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("of user")));
}

TEST_F(SharedMemoryTest, AnotherKeyIsAnotherMemory) {
  std::string key = offer_.key();
  key[15] = static_cast<char>(key[15] ^ 1);
  offer_.set_key(key);
  EXPECT_THAT(Opened(offer_), StatusIs(absl::StatusCode::kNotFound,
                                       HasSubstr("another one in its place")));
  EXPECT_NE(SharedMemory::Create(kRing, account_).value()->offer().key(),
            memory_->offer().key());
}

TEST_F(SharedMemoryTest, AnOfferThatIsNoneIsRefused) {
  using Change = std::function<void(v1::SharedMemoryOffer&)>;
  for (const Change& change : std::vector<Change>{
           [](auto& offer) { offer.set_process(0); },
           [](auto& offer) { offer.set_process(-1); },
           [](auto& offer) { offer.set_file_descriptor(-1); },
           [](auto& offer) { offer.set_key("short"); },
           [](auto& offer) { offer.set_ring_bytes(0); },
           [](auto& offer) { offer.set_ring_bytes(kRing + 1); },
           [](auto& offer) { offer.set_ring_bytes(kMaxRingBytes * 2); },
           [](auto& offer) { offer.set_ring_bytes(UINT64_MAX); },
           [](auto& offer) { offer.Clear(); }}) {
    v1::SharedMemoryOffer offer = offer_;
    change(offer);
    EXPECT_THAT(Opened(offer), StatusIs(absl::StatusCode::kInvalidArgument,
                                        HasSubstr("shared memory")))
        << offer.ShortDebugString();
  }
}

// A descriptor that is not the offered memory is neither modified nor waited
// for.
TEST_F(SharedMemoryTest, WhatIsNoSuchMemoryIsNotTouched) {
  const TemporaryDirectory directory;
  const std::string fifo = directory.path() + "/fifo";
  const std::string file = directory.path() + "/file";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  std::vector<int> descriptors = {pipe_ends[0],
                                  pipe_ends[1],
                                  open(fifo.c_str(), O_RDWR),
                                  open(file.c_str(), O_RDWR | O_CREAT, 0600),
                                  open("/dev/zero", O_RDWR),
                                  memfd_create("of another size", 0)};
  for (const int descriptor : descriptors) {
    EXPECT_THAT(Opened(OfferOf(descriptor)),
                StatusIs(absl::StatusCode::kNotFound,
                         HasSubstr("there is something else")));
  }
  v1::SharedMemoryOffer offer = offer_;
  offer.set_file_descriptor(1'000'000);
  EXPECT_THAT(Opened(offer), StatusIs(absl::StatusCode::kNotFound,
                                      HasSubstr("cannot be found")));
  offer = offer_;
  offer.set_process(int64_t{1} << 40);
  EXPECT_THAT(Opened(offer), StatusIs(absl::StatusCode::kNotFound,
                                      HasSubstr("cannot be found")));
  for (const int descriptor : descriptors) close(descriptor);
}

// Memory that is not sealed is refused: it could shrink while being read, which
// would kill the reader's process.
TEST_F(SharedMemoryTest, WhatIsNotSealedIsRefused) {
  struct stat stat;
  ASSERT_EQ(fstat(offer_.file_descriptor(), &stat), 0);
  const int descriptor = memfd_create("unsealed", MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(descriptor, stat.st_size), 0);
  ASSERT_EQ(pwrite(descriptor, offer_.key().data(), offer_.key().size(), 0),
            static_cast<ssize_t>(offer_.key().size()));
  const auto refused = StatusIs(absl::StatusCode::kInvalidArgument,
                                HasSubstr("its size is not sealed"));
  EXPECT_THAT(Opened(OfferOf(descriptor)), refused);
  ASSERT_EQ(fcntl(descriptor, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SEAL), 0);
  EXPECT_THAT(Opened(OfferOf(descriptor)), refused);
  close(descriptor);
}

}  // namespace
}  // namespace gshard
