#include "router/workers/worker_connection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "services/base/retry_delay.h"
#include "services/config/security_options.h"
#include "services/rpc/wire/trace_scope.h"
#include "tests/router/fake_worker.h"
#include "tests/services/trace/fake_collector.h"
#include "tests/testing/deaf_server.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

// Long enough that only a connection that waits for its peer exceeds it.
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
  server = nullptr;  // unblocks a connection that waits
  gone.wait();
  EXPECT_THAT(replied.get().status(),
              StatusIs(absl::StatusCode::kCancelled,
                       HasSubstr("expert worker 'w': the connection was")));
}

// A delay says that the error may pass.
TEST(WorkerConnectionTest, ASlowWorkerMayTakeACallLaterButNoneThatIsTooLong) {
  DeafServer server;
  ASSERT_OK_AND_ASSIGN(auto channel, CreateChannel(server.address()));
  StreamOptions options;
  options.max_queued_bytes = 1;
  options.frame_limits.max_bytes = 5 << 20;
  auto connection = std::make_shared<WorkerConnection>("w", std::move(channel),
                                                       std::move(options));
  // The error with which a call with so many floats ends at once, or OK.
  const auto refusal = [&](int64_t floats) {
    WorkerCall call;
    call.inputs.emplace_back("rows", RandomTensor({floats}, 1));
    const auto status = std::make_shared<absl::Status>();
    connection->Call(std::move(call),
                     [status](auto reply) { *status = reply.status(); });
    return *status;
  };
  ASSERT_OK(refusal(1 << 20));  // more than the socket takes
  const absl::Status slow = refusal(1);
  EXPECT_THAT(slow, StatusIs(absl::StatusCode::kResourceExhausted,
                             HasSubstr("too slow")));
  EXPECT_TRUE(RetryDelay(slow).has_value());
  const absl::Status too_long = refusal(2 << 20);
  EXPECT_THAT(too_long, StatusIs(absl::StatusCode::kResourceExhausted,
                                 HasSubstr("longer than a message may be")));
  EXPECT_FALSE(RetryDelay(too_long).has_value());
}

// Nobody calls it: what has no workers left is not ready, calls or not.
TEST(WorkerConnectionTest, AWorkerThatIsLostIsProbed) {
  auto worker =
      std::make_unique<FakeWorker>(std::vector<Segment>(), TensorMap());
  ASSERT_OK_AND_ASSIGN(auto channel, CreateChannel(worker->address()));
  WorkerConnection connection("w", std::move(channel));
  std::promise<absl::Status> reply;
  connection.Ping("", [&](auto pong) { reply.set_value(pong.status()); });
  ASSERT_OK(reply.get_future().get());
  EXPECT_EQ(connection.state().health(), WorkerHealth::State::kGood);
  worker = nullptr;
  while (connection.state().health() == WorkerHealth::State::kGood) {
    std::this_thread::yield();
  }
  EXPECT_EQ(connection.state().health(), WorkerHealth::State::kSlow);
}

TEST(WorkerConnectionTest, ACallIsASpanInEachTraceThatIsSampled) {
  FakeCollector collector;
  const auto exporter = std::make_shared<SpanExporter>(
      SpanExporterOptions{.endpoint = collector.endpoint()});
  const Tracer tracer = Tracer::Create();
  tracer.ExportTo(exporter, /*ratio=*/1);
  const std::vector<TraceContext> traces = {
      tracer.Sampled(NewTrace()), NewTrace(), tracer.Sampled(NewTrace())};
  DeafServer server;
  ASSERT_OK_AND_ASSIGN(auto channel, CreateChannel(server.address()));
  auto connection = std::make_shared<WorkerConnection>("w", std::move(channel),
                                                       StreamOptions(), tracer);
  const auto call = [&] {
    const TraceScope scope(traces);
    return connection->Call({}, [](auto) {});
  };
  connection->Cancel(call());  // its callback is not called
  call();
  connection = nullptr;
  exporter->Shutdown();
  std::vector<std::string> parents;
  for (const CollectedSpan& span : collector.Spans()) {
    parents.push_back(span.parent_id);
    EXPECT_EQ(span.kind, SpanKind::kClient);
    EXPECT_EQ(span.error, "CANCELLED");
    EXPECT_EQ(span.attribute("gshard.worker"), "expert worker 'w'");
  }
  EXPECT_THAT(parents, ::testing::UnorderedElementsAre(
                           traces[0].span_id, traces[2].span_id,
                           traces[0].span_id, traces[2].span_id));
}

// Memory is shared under any address of this machine: a worker that can open
// the memory is on the same machine.
TEST(WorkerConnectionsTest, MemoryIsSharedWhateverTheAddressIs) {
  const SharingOptions mine{.account = 8 << 20}, theirs{.account = 8 << 20};
  FakeWorker worker({}, {}, nullptr, theirs, "127.0.0.1:0");
  std::string address = worker.address();
  address.replace(0, address.rfind(':'), "0.0.0.0");
  ASSERT_FALSE(IsLocalAddress(address));
  WorkerConnections connections({}, {}, mine);
  ASSERT_OK_AND_ASSIGN(const auto connection, connections.Get("w", address));
  std::promise<absl::Status> reply;
  connection->Ping("", [&](auto pong) { reply.set_value(pong.status()); });
  EXPECT_OK(reply.get_future().get());
  EXPECT_GT(theirs.account.used(), 0);
  EXPECT_EQ(theirs.account.used(), mine.account.used());
}

}  // namespace
}  // namespace gshard
