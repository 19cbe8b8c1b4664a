// An exchange without a network, for comparison with the unpartitioned program:
// workers are functions in this process, called one at a time.

#ifndef TESTS_SERVICES_EXCHANGE_LOCAL_EXCHANGE_H_
#define TESTS_SERVICES_EXCHANGE_LOCAL_EXCHANGE_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/exchange/expert_exchange.h"
#include "services/segments/segment_host.h"

namespace gshard {

// Global ids of the experts of each worker, ascending.
using ExpertsOfWorkers = std::vector<std::vector<int32_t>>;

// A worker that is a function.
class LocalWorker final : public WorkerStub {
 public:
  using Run =
      std::function<absl::StatusOr<std::vector<Tensor>>(const WorkerCall&)>;

  LocalWorker(absl::string_view name, Run run)
      : WorkerStub(name), run_(std::move(run)) {}

  uint64_t Call(WorkerCall call, OnReply on_reply) override {
    auto replies = run_(call);
    if (!replies.ok()) replies = Annotate(replies.status(), name());
    on_reply(std::move(replies));
    return 0;
  }
  uint64_t Ping(const std::string&, OnReply on_reply) override {
    on_reply(std::vector<Tensor>());
    return 0;
  }
  void Cancel(uint64_t) override {}

 private:
  const Run run_;
};

inline TensorMap InputsOf(const WorkerCall& call) {
  TensorMap inputs;
  for (const auto& [name, tensor] : call.inputs) {
    inputs[std::string(name)] = tensor;
  }
  return inputs;
}

// An exchange with functions as workers and the policy of training. Runs must
// not overlap.
class LocalExchange : public SegmentRunner {
 public:
  using Run = std::function<absl::StatusOr<std::vector<Tensor>>(
      int worker, const WorkerCall& call)>;

  // Entry w of `experts` is worker w's.
  LocalExchange(const ExpertsOfWorkers& experts, Run run, int64_t step = 1) {
    ReplicaGroup group;
    int64_t num_experts = 0;
    for (const std::vector<int32_t>& held : experts) {
      num_experts += static_cast<int64_t>(held.size());
      const int w = static_cast<int>(group.holdings.size());
      const std::string name = absl::StrCat("w", w);
      group.holdings.push_back(
          {.worker = name,
           .session = "local",
           .experts = held,
           .stub = std::make_shared<LocalWorker>(
               name, [run, w](const auto& call) { return run(w, call); })});
    }
    policy_ = std::make_unique<TrainingPolicy>(
        num_experts, std::make_shared<ReplicaGroup>(std::move(group)));
    exchange_ = std::make_unique<ExpertExchange>(
        *policy_, calls_,
        ExchangeRun{.step = step,
                    .deadline = std::chrono::steady_clock::now() +
                                std::chrono::hours(1)});
  }

  absl::StatusOr<std::vector<Tensor>> Call(
      const Node& node, absl::Span<const Tensor> operands) override {
    SegmentCall call = GetSegmentCall(node);
    const std::string segment = call.segment;
    calls_.try_emplace(segment, std::move(call));
    return exchange_->Call(node, operands);
  }

 private:
  SegmentCalls calls_;  // filled by Call()
  std::unique_ptr<TrainingPolicy> policy_;
  std::unique_ptr<ExpertExchange> exchange_;
};

// A LocalExchange with a SegmentHost for each worker.
class LocalSegments final : public LocalExchange {
 public:
  // Called with each gradient of worker w.
  using OnGradient =
      std::function<void(int w, const std::string& parameter, Tensor gradient)>;

  // parameters[w] are worker w's. Workers without rows are called if there is
  // `on_gradient`.
  LocalSegments(const std::vector<Segment>& segments,
                const ExpertsOfWorkers& experts,
                std::vector<TensorMap> parameters,
                OnGradient on_gradient = nullptr)
      : LocalExchange(
            experts,
            [this](int w, const WorkerCall& call) { return RunOn(w, call); },
            /*step=*/on_gradient == nullptr ? 0 : 1),
        parameters_(std::move(parameters)),
        on_gradient_(std::move(on_gradient)) {
    for (size_t w = 0; w < parameters_.size(); ++w) {
      hosts_.push_back(std::make_unique<SegmentHost>(segments));
    }
  }

 private:
  absl::StatusOr<std::vector<Tensor>> RunOn(int w, const WorkerCall& call) {
    absl::StatusOr<SegmentResult> result = hosts_[w]->Run(
        call.segment, /*run=*/"local", InputsOf(call), parameters_[w]);
    if (!result.ok()) return result.status();
    for (auto& [parameter, gradient] : result->gradients) {
      if (on_gradient_) on_gradient_(w, parameter, std::move(gradient));
    }
    return std::move(result->replies);
  }

  const std::vector<TensorMap> parameters_;
  const OnGradient on_gradient_;
  std::vector<std::unique_ptr<SegmentHost>> hosts_;
};

}  // namespace gshard

#endif  // TESTS_SERVICES_EXCHANGE_LOCAL_EXCHANGE_H_
