// TrainingSession: the dense side of a training job on this router. Reads the
// text, runs microbatches with the expert workers, and sends their gradients to
// the coordinator or keeps them for the sum among routers.

#ifndef ROUTER_TRAINING_TRAINING_SESSION_H_
#define ROUTER_TRAINING_TRAINING_SESSION_H_

#include <grpcpp/channel.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stop_token>
#include <string>

#include "absl/status/statusor.h"
#include "proto/gshard/v1/coordinator.pb.h"
#include "router/metrics/router_metrics.h"
#include "router/models/cancellation.h"
#include "router/training/dense_shard.h"
#include "router/training/training_text.h"
#include "services/base/mutex.h"
#include "services/config/training_job.h"
#include "services/exchange/expert_exchange.h"
#include "services/rpc/client/tensor_transfer.h"
#include "services/rpc/wire/tensor_pieces.h"
#include "services/train/microbatch.h"

namespace gshard {

struct TrainingSessionSpec {
  std::string session;
  TrainingJob job;                  // validated
  std::string tokenizer_directory;  // source.model, and target.model if needed
  int64_t done_steps = 0;           // the session begins with the next one
  std::shared_ptr<const ReplicaGroup> workers;  // each expert once
  // Source of parameters and destination of gradients, on the same device;
  // null: the coordinator.
  std::shared_ptr<DenseShard> dense;
  uint64_t segments_key = 0;  // of the workers' segments: segments_key.h
  Device* device = nullptr;   // outlives the session; null: the CPU
};

// Thread-safe.
class TrainingSession {
 public:
  // Parameters come from `coordinator` and gradients go there. Errors: those of
  // TrainingText::Open, which can be stopped, and of building the program;
  // Unimplemented if workers run other segments, or if the device lacks a
  // kernel.
  static absl::StatusOr<std::unique_ptr<TrainingSession>> Create(
      TrainingSessionSpec spec, std::shared_ptr<grpc::Channel> coordinator,
      RouterMetrics metrics = {}, std::stop_token stop = {});

  // Runs one microbatch; blocks. On return the gradients have been pushed, or
  // kept; validation has none.
  //
  // Errors: InvalidArgument for one that does not exist; DeadlineExceeded;
  // Cancelled after Interrupt(); those of the expert workers; those of
  // PullParameters and PushGradients, or of DenseShard; those of the device.
  absl::StatusOr<v1::MicrobatchStats> RunMicrobatch(
      const v1::AssignMicrobatch& assignment);

  // The dense parameters that this router owns; null if the coordinator holds
  // them.
  DenseShard* dense() const { return spec_.dense.get(); }

  // Aborts the running microbatch, its transfers included, or exchange and all
  // later ones.
  void Interrupt() {
    interrupted_.Cancel();
    transfers_.request_stop();
    if (spec_.dense != nullptr) spec_.dense->Abort();
  }

  const TrainingText& text() const { return *text_; }
  int64_t memory_bytes() const;

 private:
  using Parameters = std::shared_ptr<const TensorMap>;

  TrainingSession(TrainingSessionSpec spec, SegmentCalls calls, Program program,
                  Program evaluation, std::unique_ptr<TrainingText> text,
                  std::shared_ptr<grpc::Channel> coordinator,
                  RouterMetrics metrics);

  absl::Status CheckAssignment(const v1::AssignMicrobatch& assignment) const;
  // Sends a microbatch's gradients to where they are summed.
  absl::Status HandOver(const v1::AssignMicrobatch& assignment,
                        GradientList gradients,
                        std::chrono::milliseconds timeout);
  // The dense parameters of a version; caches the last one.
  absl::StatusOr<Parameters> PullVersion(int64_t version,
                                         std::chrono::milliseconds timeout);
  // Caches them, in the types of the program and where that runs.
  absl::StatusOr<Parameters> Hold(int64_t version, TensorMap parameters)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(parameters_mutex_);
  absl::StatusOr<MicrobatchResult> Run(const v1::AssignMicrobatch& assignment,
                                       const TensorMap& parameters,
                                       SegmentRunner* segments,
                                       std::function<bool()> cancelled) const;
  absl::Status Push(const v1::AssignMicrobatch& assignment,
                    GradientList gradients, std::chrono::milliseconds timeout);
  void CountLayers(const StepStatistics& statistics) const;

  const TrainingSessionSpec spec_;
  const MicrobatchRunner runner_;
  const MicrobatchRunner evaluator_;
  const std::unique_ptr<TrainingText> text_;
  const std::shared_ptr<grpc::Channel> coordinator_;
  const RouterMetrics metrics_;
  std::vector<LayerMetrics> layers_;  // MoE layers
  const SegmentCalls calls_;
  TrainingPolicy workers_;
  std::map<std::string, ExpectedTensor> expected_;  // dense parameters
  Cancellation interrupted_;
  std::stop_source transfers_;  // with the coordinator

  Mutex parameters_mutex_;
  int64_t version_ ABSL_GUARDED_BY(parameters_mutex_) = -1;
  Parameters parameters_ ABSL_GUARDED_BY(parameters_mutex_);
};

}  // namespace gshard

#endif  // ROUTER_TRAINING_TRAINING_SESSION_H_
