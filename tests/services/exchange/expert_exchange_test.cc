// Tests what an exchange sends to which workers, with functions as workers.
// tests/router/workers/exchange_test.cc covers the same over gRPC.

#include "services/exchange/expert_exchange.h"

#include <chrono>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/exchange/replica_set.h"
#include "services/graph/executor.h"
#include "tests/services/exchange/call_program.h"
#include "tests/services/exchange/local_exchange.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using std::chrono::hours;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

absl::StatusOr<std::vector<Tensor>> RunCall(SegmentRunner& segments) {
  auto program = CallProgram();
  if (!program.ok()) return program.status();
  return Executor(*std::move(program))
      .Run({{"sizes", CallSizes()}, {"rows", CallRows()}}, {},
           {.context = RunContext().With<SegmentRunner>(&segments)});
}

// Records which workers are called, and returns their rows unchanged.
class Echo {
 public:
  LocalExchange::Run run() {
    return
        [this](int w,
               const WorkerCall& call) -> absl::StatusOr<std::vector<Tensor>> {
          EXPECT_EQ(call.segment, "p/1");
          EXPECT_EQ(call.inputs.size(), 1u);
          EXPECT_EQ(call.inputs[0].first, "call/v7");
          called.push_back(w);
          return std::vector<Tensor>{call.inputs[0].second};
        };
  }
  std::vector<int> called;
};

TEST(ExpertExchangeTest, AsksThoseWithRowsAndInTrainingAll) {
  for (const int64_t step : {0, 1}) {
    Echo echo;
    LocalExchange exchange({{1}, {0, 3}, {4}, {2}}, echo.run(), step);
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> y, RunCall(exchange));
    EXPECT_TRUE(TensorEqual(y[0], CallRows()));
    if (step == 0) {
      EXPECT_THAT(echo.called, ElementsAre(1, 3));
    } else {
      EXPECT_THAT(echo.called, ElementsAre(0, 1, 2, 3));
    }
  }
}

TEST(ExpertExchangeTest, RefusesAPlacementThatLacksAnExpert) {
  Echo echo;
  ASSERT_OK_AND_ASSIGN(const Program program, CallProgram());
  ASSERT_OK_AND_ASSIGN(const SegmentCalls calls, ReadSegmentCalls({&program}));
  TrainingPolicy nobody(5, std::make_shared<ReplicaGroup>());
  ExpertExchange exchange(nobody, calls, {.deadline = Clock::now() + hours(1)});
  EXPECT_THAT(RunCall(exchange),
              StatusIs(absl::StatusCode::kInternal,
                       HasSubstr("no expert worker holds expert 0")));
  LocalExchange four({{0, 1}, {2, 3}}, echo.run());
  EXPECT_THAT(RunCall(four),
              StatusIs(absl::StatusCode::kInternal,
                       HasSubstr("expected rows of 4 experts, got 5")));
}

TEST(ExpertExchangeTest, RefusesASegmentOfAnotherModel) {
  TrainingPolicy policy(5, std::make_shared<ReplicaGroup>());
  const SegmentCalls none;
  ExpertExchange exchange(policy, none, {.deadline = Clock::now() + hours(1)});
  EXPECT_THAT(RunCall(exchange),
              StatusIs(absl::StatusCode::kInternal,
                       HasSubstr("segment p/1 is not of the model")));
}

// Keeps the callbacks of all calls, cancelled ones included, for the test.
class Keeper final : public WorkerStub {
 public:
  using WorkerStub::WorkerStub;
  uint64_t Call(WorkerCall, OnReply on_reply) override {
    kept.push_back(std::move(on_reply));
    return kept.size();
  }
  uint64_t Ping(const std::string&, OnReply) override { return 0; }
  void Cancel(uint64_t) override { ++cancelled; }

  std::vector<OnReply> kept;
  int cancelled = 0;
};

// A reply in delivery when its call is cancelled may arrive during the next
// call, whose piece has the same index. The exchange drops it.
TEST(ExpertExchangeTest, RepliesToEarlierCallsAreDropped) {
  const auto slow = std::make_shared<Keeper>("slow");
  bool next = false;
  const auto quick = std::make_shared<LocalWorker>(
      "quick",
      [&](const WorkerCall& call) -> absl::StatusOr<std::vector<Tensor>> {
        if (next) {
          slow->kept[0](std::vector<Tensor>{Tensor::Zeros(
              ElementType::kFloat32, call.inputs[0].second.dims())});
        }
        return std::vector<Tensor>{call.inputs[0].second};
      });
  // Of two equal replicas, the first is called first.
  auto group = std::make_shared<ReplicaGroup>();
  const std::vector<int32_t> all = {0, 1, 2, 3, 4};
  group->holdings = {{"slow", "m", all, slow}, {"quick", "m", all, quick}};
  ReplicaSet replicas(5, group);
  ASSERT_OK_AND_ASSIGN(const Program program, CallProgram());
  ASSERT_OK_AND_ASSIGN(const SegmentCalls calls, ReadSegmentCalls({&program}));
  ExpertExchange exchange(replicas, calls,
                          {.deadline = Clock::now() + hours(1)});
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> first, RunCall(exchange));
  EXPECT_TRUE(TensorEqual(first[0], CallRows()));
  EXPECT_EQ(slow->cancelled, 1);
  EXPECT_EQ(slow->state().outstanding_rows(), 0);
  next = true;
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> second, RunCall(exchange));
  EXPECT_TRUE(TensorEqual(second[0], CallRows()));
  EXPECT_THAT(exchange.lost_rows(), ::testing::IsEmpty());
}

}  // namespace
}  // namespace gshard
