#include "router/workers/worker_connection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <utility>

#include "tests/testing/deaf_server.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

// So long that only a connection that waits for its peer is later.
constexpr std::chrono::seconds kLong{60};

TEST(WorkerConnectionTest, GoesWithoutWaitingForAPausedWorker) {
  auto server = std::make_unique<DeafServer>();
  ASSERT_OK_AND_ASSIGN(auto channel, CreateChannel(server->address()));
  auto connection = std::make_shared<WorkerConnection>("w", std::move(channel));
  std::promise<absl::StatusOr<std::vector<Tensor>>> reply;
  auto replied = reply.get_future();
  WorkerCall call;
  call.inputs.emplace_back("rows", RandomTensor({1000, 1000}, 1));
  connection->Call(std::move(call),
                   [&](auto outcome) { reply.set_value(std::move(outcome)); });
  server->AwaitBytes(1 << 15);
  std::future<void> gone =
      std::async(std::launch::async, [&] { connection = nullptr; });
  EXPECT_EQ(gone.wait_for(kLong), std::future_status::ready);
  server = nullptr;  // ends whatever waits
  gone.wait();
  EXPECT_THAT(replied.get().status(),
              StatusIs(absl::StatusCode::kCancelled,
                       HasSubstr("expert worker 'w': the connection was")));
}

}  // namespace
}  // namespace gshard
