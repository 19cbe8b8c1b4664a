// Which placement a router's calls follow. How they follow it, with workers, is
// tested in tests/router/workers/serving_exchange_test.cc.

#include "services/exchange/replica_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Answers nothing.
class SilentWorker final : public WorkerStub {
 public:
  using WorkerStub::WorkerStub;
  uint64_t Call(WorkerCall, OnReply) override { return 0; }
  uint64_t Ping(const std::string&, OnReply) override { return 0; }
  void Cancel(uint64_t) override {}
};

std::shared_ptr<const ReplicaGroup> GroupOf(
    int64_t version, const std::vector<std::string>& workers = {}) {
  auto group = std::make_shared<ReplicaGroup>();
  group->version = version;
  for (const std::string& worker : workers) {
    group->holdings.push_back({.worker = worker,
                               .session = "m@1",
                               .experts = {0},
                               .stub = std::make_shared<SilentWorker>(worker)});
  }
  return group;
}

TEST(ReplicaSetTest, AnOlderPlacementIsRefused) {
  ReplicaSet replicas(4, GroupOf(7));
  EXPECT_OK(replicas.Update(GroupOf(7)));
  EXPECT_OK(replicas.Update(GroupOf(8)));
  EXPECT_THAT(replicas.Update(GroupOf(7)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("expected at least 8, got 7")));
  EXPECT_EQ(replicas.group()->version, 8);
}

TEST(ReplicaSetTest, AnotherCoordinatorCountsOnItsOwn) {
  ReplicaSet replicas(4, GroupOf(7));
  replicas.AcceptAnyVersion();
  EXPECT_OK(replicas.Update(GroupOf(3)));
  EXPECT_EQ(replicas.group()->version, 3);
  EXPECT_THAT(replicas.Update(GroupOf(2)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("expected at least 3, got 2")));
  EXPECT_EQ(replicas.group()->version, 3);
}

TEST(ReplicaSetTest, SeriesOfWorkersThatAreGoneEnd) {
  Metrics process("router", "1");
  ExchangeMetrics metrics;
  metrics.workers =
      std::make_shared<WorkerCounts>(process, std::chrono::seconds(0));
  const auto shows = [](const std::string& worker) {
    return HasSubstr(absl::StrCat("\ngshard_worker_ejections_total{worker=\"",
                                  worker, "\"} 0\n"));
  };
  ReplicaSet replicas(4, GroupOf(1, {"w0", "w1"}), metrics);
  std::optional<ReplicaSet> of_another_model;
  of_another_model.emplace(4, GroupOf(1, {"w1"}), metrics);
  EXPECT_THAT(process.Serialize(), AllOf(shows("w0"), shows("w1")));
  EXPECT_OK(replicas.Update(GroupOf(2, {"w2"})));
  // Each goes when the next ones come.
  EXPECT_OK(replicas.Update(GroupOf(3, {"w3"})));
  EXPECT_THAT(process.Serialize(),
              AllOf(Not(shows("w0")), shows("w1"), shows("w2"), shows("w3")));
  of_another_model.reset();
  EXPECT_OK(replicas.Update(GroupOf(4, {"w3"})));
  EXPECT_THAT(process.Serialize(),
              AllOf(Not(shows("w1")), Not(shows("w2")), shows("w3")));
}

// Until what they have counted last is scraped, and in case they come back.
TEST(ReplicaSetTest, SeriesOfWorkersThatHaveJustGoneStay) {
  Metrics process("router", "1");
  const ExchangeMetrics metrics(process);
  ReplicaSet replicas(4, GroupOf(1, {"w0"}), metrics);
  metrics.workers->CountRetry("w0");
  metrics.workers->CountRetry("unknown");
  EXPECT_OK(replicas.Update(GroupOf(2, {"w1"})));
  EXPECT_OK(replicas.Update(GroupOf(3, {"w0"})));
  metrics.workers->CountRetry("w0");
  EXPECT_THAT(
      process.Serialize(),
      AllOf(HasSubstr("\ngshard_expert_call_retries_total{worker=\"w0\"} 2\n"),
            Not(HasSubstr("unknown"))));
}

}  // namespace
}  // namespace gshard
