#include "client/router_list.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "tests/testing/status_matchers.h"
#include "tests/testing/test_names.h"

namespace gshard {
namespace {

// As that of a Service whose routers are not ready yet.
TEST(RouterListTest, ANameThatHasNoAddressYetIsAskedForAgainSoon) {
  TestNames::Get().LeadTo("");
  ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<RouterList> routers,
      RouterList::Create({"router.test:7000"}, /*find=*/nullptr, {}));
  std::atomic<bool> done = false;
  std::thread calls([&] {
    while (!done) {
      EXPECT_FALSE(
          routers->Get(0)->stream.Translate({}, std::chrono::minutes(1)).ok());
      routers->Refresh(/*lost=*/true);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  });
  const auto asked = TestNames::Get().Asked(5);
  EXPECT_LT(asked[4] - asked[3], std::chrono::seconds(3));
  done = true;
  calls.join();
}

}  // namespace
}  // namespace gshard
