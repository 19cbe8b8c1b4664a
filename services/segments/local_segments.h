// LocalSegments: the exchange without a network. Every worker is a SegmentHost
// in this process; the calls are made one after the other.
//
// It is the in-process twin of the router's remote exchange, and what a test
// compares with the unpartitioned program.

#ifndef SERVICES_SEGMENTS_LOCAL_SEGMENTS_H_
#define SERVICES_SEGMENTS_LOCAL_SEGMENTS_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "services/segments/exchange.h"
#include "services/segments/segment_host.h"

namespace gshard {

class LocalSegments : public DividingRunner {
 public:
  // Called with the gradients of worker w, as they come.
  using OnGradient =
      std::function<void(int w, const std::string& parameter, Tensor gradient)>;

  // parameters[w] are worker w's, of which there are `slices` per entry of
  // `workers` (DividingRunner). A runner is used for one run after the other,
  // never for two at once.
  LocalSegments(const std::vector<Segment>& segments, ExpertsOfWorkers workers,
                std::vector<TensorMap> parameters,
                OnGradient on_gradient = nullptr, int slices = 1)
      : DividingRunner(workers, /*skip_idle=*/on_gradient == nullptr, slices),
        parameters_(std::move(parameters)),
        on_gradient_(std::move(on_gradient)) {
    for (size_t w = 0; w < parameters_.size(); ++w) {
      hosts_.push_back(std::make_unique<SegmentHost>(
          segments, static_cast<int>(w) % slices));
    }
  }

  std::vector<TensorMap>& parameters() { return parameters_; }

 protected:
  absl::StatusOr<std::vector<std::vector<Tensor>>> CallWorkers(
      std::vector<WorkerCall> calls) override {
    std::vector<std::vector<Tensor>> replies;
    for (WorkerCall& call : calls) {
      TensorMap inputs;
      for (auto& [name, tensor] : call.inputs) {
        inputs[name] = std::move(tensor);
      }
      absl::StatusOr<SegmentResult> result =
          hosts_[call.worker]->Run(call.segment, /*run=*/"local",
                                   std::move(inputs), parameters_[call.worker]);
      if (!result.ok()) return result.status();
      for (auto& [parameter, gradient] : result->gradients) {
        if (on_gradient_) {
          on_gradient_(call.worker, parameter, std::move(gradient));
        }
      }
      replies.push_back(std::move(result->replies));
    }
    return replies;
  }

 private:
  std::vector<TensorMap> parameters_;
  OnGradient on_gradient_;
  std::vector<std::unique_ptr<SegmentHost>> hosts_;
};

}  // namespace gshard

#endif  // SERVICES_SEGMENTS_LOCAL_SEGMENTS_H_
