#include "services/storage/object_lease.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/services/storage/fake_object_store.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

constexpr char kPath[] = "s3://bucket/jobs/owner.json";

ObjectLease::Text TextOf(const std::string& holder) {
  return [=](std::optional<int64_t> renewals) {
    return renewals.has_value() ? absl::StrCat(holder, " ", *renewals)
                                : absl::StrCat(holder, " is over");
  };
}

class ObjectLeaseTest : public ::testing::Test {
 protected:
  ObjectLeaseTest() { store_.Use(); }
  std::string Text() const { return store_.Bytes("bucket/jobs/owner.json"); }
  FakeObjectStore store_;
};

TEST_F(ObjectLeaseTest, IsTakenAndGivenBack) {
  ASSERT_OK_AND_ASSIGN(auto before, ObjectLease::Read(kPath));
  EXPECT_FALSE(before.has_value());
  ASSERT_OK_AND_ASSIGN(auto lease,
                       ObjectLease::Take(kPath, before, TextOf("a")));
  EXPECT_EQ(Text(), "a 0");
  store_.Advance(absl::Seconds(12));
  ASSERT_OK_AND_ASSIGN(before, ObjectLease::Read(kPath));
  EXPECT_EQ(before->text, "a 0");
  EXPECT_EQ(before->age, absl::Seconds(12));
  lease = nullptr;
  EXPECT_EQ(Text(), "a is over");
}

TEST_F(ObjectLeaseTest, OfTwoWhoTryOneHasIt) {
  ASSERT_OK_AND_ASSIGN(const auto none, ObjectLease::Read(kPath));
  ASSERT_OK_AND_ASSIGN(auto a, ObjectLease::Take(kPath, none, TextOf("a")));
  EXPECT_THAT(ObjectLease::Take(kPath, none, TextOf("b")),
              StatusIs(absl::StatusCode::kAborted, ::testing::_));
  ASSERT_OK_AND_ASSIGN(const auto before, ObjectLease::Read(kPath));
  ASSERT_OK_AND_ASSIGN(auto c, ObjectLease::Take(kPath, before, TextOf("c")));
  EXPECT_THAT(ObjectLease::Take(kPath, before, TextOf("d")),
              StatusIs(absl::StatusCode::kAborted, ::testing::_));
  // A holder that lost the lease leaves the new holder's lease alone.
  a = nullptr;
  EXPECT_EQ(Text(), "c 0");
}

TEST_F(ObjectLeaseTest, IsRenewedWhateverFailsInBetween) {
  std::promise<void> renewed;
  std::atomic<int> puts{0};
  store_.SetOnRequest([&](const std::string& request) {
    if (request.substr(0, 3) != "PUT") return FakeObjectStore::Fault::kNone;
    const int put = ++puts;
    if (put == 12) renewed.set_value();
    // The first three puts take the lease.
    return put > 3 && put % 3 != 0 ? FakeObjectStore::Fault::kLost
                                   : FakeObjectStore::Fault::kNone;
  });
  ASSERT_OK_AND_ASSIGN(auto lease,
                       ObjectLease::Take(kPath, std::nullopt, TextOf("a"),
                                         absl::Milliseconds(1)));
  renewed.get_future().wait();
  store_.SetOnRequest(nullptr);
  EXPECT_NE(Text(), "a 0");
  lease = nullptr;
  EXPECT_EQ(Text(), "a is over");
}

// A renewal whose answer is lost was made all the same. The store answers again
// during a later one.
TEST_F(ObjectLeaseTest, IsRenewedAfterARenewalWithoutAnAnswer) {
  std::promise<void> renewed;
  std::atomic<int> puts{0};
  const int silent = 2 * store_.options().attempts;
  store_.SetOnRequest([&](const std::string& request) {
    if (request.substr(0, 3) != "PUT") return FakeObjectStore::Fault::kNone;
    const int put = ++puts;
    // The first three take the lease. One is refused, others renew it.
    if (put == 4 + silent + 4) renewed.set_value();
    if (put == 4) return FakeObjectStore::Fault::kLost;
    return put > 4 && put <= 4 + silent ? FakeObjectStore::Fault::kSlowDown
                                        : FakeObjectStore::Fault::kNone;
  });
  ASSERT_OK_AND_ASSIGN(auto lease,
                       ObjectLease::Take(kPath, std::nullopt, TextOf("a"),
                                         absl::Milliseconds(1)));
  EXPECT_EQ(renewed.get_future().wait_for(std::chrono::seconds(20)),
            std::future_status::ready);
  store_.SetOnRequest(nullptr);
  lease = nullptr;
  EXPECT_EQ(Text(), "a is over");
}

TEST_F(ObjectLeaseTest, AConnectionThatHangsIsGivenUp) {
  std::promise<void> answer, renewed;
  const std::shared_future<void> answered = answer.get_future().share();
  std::atomic<int> puts{0};
  store_.SetOnRequest([&, answered](const std::string& request) {
    if (request.substr(0, 3) != "PUT") return FakeObjectStore::Fault::kNone;
    const int put = ++puts;
    if (put == 4) answered.wait();  // the first renewal
    if (put == 6) renewed.set_value();
    return FakeObjectStore::Fault::kNone;
  });
  ASSERT_OK_AND_ASSIGN(
      auto lease,
      ObjectLease::Take(kPath, std::nullopt, TextOf("a"), absl::Milliseconds(1),
                        absl::Milliseconds(500)));
  EXPECT_EQ(renewed.get_future().wait_for(std::chrono::seconds(20)),
            std::future_status::ready);
  store_.SetOnRequest(nullptr);
  answer.set_value();
  lease = nullptr;
  EXPECT_EQ(Text(), "a is over");
}

// The same holder can take it again at once.
TEST_F(ObjectLeaseTest, IsGivenBackIfTheStoreCannotBeTried) {
  std::atomic<int> requests{0};
  const int attempts = store_.options().attempts;
  store_.SetOnRequest([&](const std::string&) {
    const int request = ++requests;
    return request > 1 && request <= 1 + attempts
               ? FakeObjectStore::Fault::kSlowDown
               : FakeObjectStore::Fault::kNone;
  });
  EXPECT_THAT(ObjectLease::Take(kPath, std::nullopt, TextOf("a")),
              StatusIs(absl::StatusCode::kUnavailable, ::testing::_));
  EXPECT_EQ(Text(), "a is over");
}

TEST_F(ObjectLeaseTest, AStoreThatIsSlowHeedsConditions) {
  std::atomic<int> count{0};
  store_.SetOnRequest([&](const std::string&) {
    return count++ % 2 == 0 ? FakeObjectStore::Fault::kSlowDown
                            : FakeObjectStore::Fault::kNone;
  });
  EXPECT_OK(ObjectLease::Take(kPath, std::nullopt, TextOf("a")));
}

TEST_F(ObjectLeaseTest, AStoreThatIgnoresConditionsIsRefused) {
  store_.IgnoreConditions();
  EXPECT_THAT(ObjectLease::Take(kPath, std::nullopt, TextOf("a")),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("If-None-Match")));
}

}  // namespace
}  // namespace gshard
