// ServingExchangeFixture: a program split by role, whose experts several fake
// workers hold, and what it computes without a network.

#ifndef TESTS_ROUTER_WORKERS_SERVING_EXCHANGE_FIXTURE_H_
#define TESTS_ROUTER_WORKERS_SERVING_EXCHANGE_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "router/workers/worker_connection.h"
#include "services/exchange/expert_exchange.h"
#include "services/exchange/replica_set.h"
#include "services/graph/executor.h"
#include "services/metrics/metrics.h"
#include "tests/router/fake_worker.h"
#include "tests/services/segments/split_model.h"

namespace gshard {

// The reference without a network: experts are local, but some rows are lost.
class LossySegments final : public SegmentRunner {
 public:
  LossySegments(const RolePrograms& roles, const TensorMap& parameters,
                std::set<int32_t> lost)
      : whole_(roles.segments, {{0, 1, 2, 3}},
               ShareParameters(roles, {{0, 1, 2, 3}}, parameters)),
        lost_(std::move(lost)) {}

  absl::StatusOr<std::vector<Tensor>> Call(
      const Node& node, absl::Span<const Tensor> operands) override {
    lost_rows_.clear();
    auto results = whole_.Call(node, operands);
    if (!results.ok()) return results;
    int64_t row = 0;
    for (int32_t e = 0; e < 4; ++e) {
      const int64_t size = operands[0].i32()[e];
      if (lost_.count(e) > 0 && size > 0) {
        lost_rows_.push_back({row, row + size});
        Tensor rows = (*results)[0].Rows(row, row + size);
        std::fill_n(rows.f32(), rows.size(), 0.0f);
      }
      row += size;
    }
    return results;
  }
  absl::Span<const RowRange> lost_rows() const override { return lost_rows_; }

 private:
  LocalSegments whole_;
  const std::set<int32_t> lost_;
  std::vector<RowRange> lost_rows_;
};

class ServingExchangeFixture : public ::testing::Test {
 protected:
  using Clock = std::chrono::steady_clock;

  ServingExchangeFixture() {
    auto program = BuildEncodeProgram(config_);
    EXPECT_OK(program);
    program_ = *std::move(program);
    auto roles = SplitRoles(program_);
    EXPECT_OK(roles);
    roles_ = *std::move(roles);
    auto calls = ReadSegmentCalls({&roles_.router});
    EXPECT_OK(calls);
    calls_ = *std::move(calls);
    parameters_ = TinyParameters(config_, 7);
    AddSentences("source", {{1, 4, 9, 2}, {5, 2}, {3, 3, 8}}, 0, inputs_);
    inputs_["key"] = KeyInput(0);
  }

  ~ServingExchangeFixture() override {
    replicas_ = nullptr;
    group_ = nullptr;  // streams end before the workers
  }

  // Starts a worker for each list of experts.
  void StartWorkers(const ExpertsOfWorkers& experts) {
    auto group = std::make_shared<ReplicaGroup>();
    group->version = 1;
    const std::vector<TensorMap> shares =
        ShareParameters(roles_, experts, parameters_);
    for (size_t w = 0; w < experts.size(); ++w) {
      workers_.push_back(
          std::make_unique<FakeWorker>(roles_.segments, shares[w]));
      const std::string name = absl::StrCat("w", w);
      group->holdings.push_back({.worker = name,
                                 .session = "m@1#0",
                                 .experts = experts[w],
                                 .stub = std::make_shared<WorkerConnection>(
                                     name, workers_[w]->Channel())});
    }
    group_ = group;
    replicas_ = std::make_unique<ReplicaSet>(4, group, exchange_metrics_);
  }

  absl::StatusOr<TensorMap> Run(
      Clock::duration timeout = std::chrono::hours(1)) {
    ExpertExchange segments(*replicas_, calls_,
                            {.deadline = Clock::now() + timeout});
    auto outputs =
        Executor(roles_.router)
            .Run(inputs_, parameters_,
                 {.context = RunContext().With<SegmentRunner>(&segments)});
    if (!outputs.ok()) return outputs.status();
    return NamedOutputs(roles_.router, *outputs);
  }

  // The outputs of the program without the lost experts.
  TensorMap Expected(std::set<int32_t> lost = {}) {
    if (lost.empty()) {
      auto whole = RunWhole(program_, parameters_, inputs_);
      EXPECT_OK(whole);
      return *whole;
    }
    LossySegments segments(roles_, parameters_, std::move(lost));
    auto outputs =
        Executor(roles_.router)
            .Run(inputs_, parameters_,
                 {.context = RunContext().With<SegmentRunner>(&segments)});
    EXPECT_OK(outputs);
    return NamedOutputs(roles_.router, *outputs);
  }

  void ExpectSame(const absl::StatusOr<TensorMap>& outputs,
                  std::set<int32_t> lost = {}) {
    ASSERT_OK(outputs);
    ExpectSameOutputs(Expected(std::move(lost)), *outputs);
  }

  static int64_t LostChoices(const TensorMap& outputs) {
    int64_t lost = 0;
    for (const auto& [name, tensor] : outputs) {
      if (name.rfind("lost/", 0) != 0) continue;
      for (const int32_t count : tensor.span<int32_t>()) lost += count;
    }
    return lost;
  }

  WorkerHealth::State StateOf(int w) {
    return group_->holdings[w].stub->state().health();
  }
  void WaitForState(int w, WorkerHealth::State state) {
    while (StateOf(w) != state) std::this_thread::yield();
  }

  // Calls go to the worker with the lowest index that may have them, of those
  // that are alike.
  void PreferTheFirst(int64_t rows = 1000) {
    for (size_t w = 0; w < workers_.size(); ++w) {
      group_->holdings[w].stub->state().AddOutstanding(static_cast<int64_t>(w) *
                                                       rows);
    }
  }

  // Expects no outstanding rows.
  void ExpectNothingLeft() {
    for (const ReplicaHolding& holding : group_->holdings) {
      EXPECT_EQ(holding.stub->state().outstanding_rows(), 0);
    }
  }

  bool HasMetric(const std::string& line) {
    return metrics_.Serialize().find(line) != std::string::npos;
  }

  ModelConfig config_ = TinyConfig();
  Program program_;
  RolePrograms roles_;
  TensorMap parameters_;
  TensorMap inputs_;
  SegmentCalls calls_;
  Metrics metrics_{"router", "test"};
  ExchangeMetrics exchange_metrics_{metrics_};
  std::vector<std::unique_ptr<FakeWorker>> workers_;
  std::shared_ptr<const ReplicaGroup> group_;
  std::unique_ptr<ReplicaSet> replicas_;
};

}  // namespace gshard

#endif  // TESTS_ROUTER_WORKERS_SERVING_EXCHANGE_FIXTURE_H_
