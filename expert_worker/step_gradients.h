// StepGradients: the gradients of one step, as its microbatches' segments run.
//
// The coordinator hands a microbatch out again when somebody failed, with a
// higher attempt. What counts is the highest attempt that was seen; what lower
// ones left is not used. An attempt whose microbatch is in the sum already adds
// nothing: a microbatch's gradient has the same bits whichever attempt made it.

#ifndef EXPERT_WORKER_STEP_GRADIENTS_H_
#define EXPERT_WORKER_STEP_GRADIENTS_H_

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/graph/executor.h"
#include "services/train/ordered_sum.h"
#include "services/train/parameter_store.h"

namespace gshard {

// Thread-safe.
class StepGradients {
 public:
  // Gradients of `parameters`, over microbatches 0 .. count - 1, of which at
  // most `max_early` complete ones wait for their turn in the sum.
  StepGradients(std::vector<std::string> parameters, int64_t count,
                int64_t max_early);

  // Attempt `attempt` of `microbatch` makes a call. Returns the attempt that it
  // supersedes, if there is one. Errors: InvalidArgument if there is no such
  // microbatch or attempt; FailedPrecondition after a higher attempt; Aborted
  // if this one was abandoned.
  absl::StatusOr<std::optional<int32_t>> Enter(int32_t microbatch,
                                               int32_t attempt);

  // Keeps what a call made; with `last` the microbatch is complete and goes to
  // the sum. Errors: FailedPrecondition if the attempt was superseded
  // meanwhile, Aborted if it was abandoned; InvalidArgument if a gradient is
  // missing or twice there, or has another shape than in other microbatches;
  // ResourceExhausted if it is early and max_early others are.
  absl::Status Add(int32_t microbatch, int32_t attempt, GradientList gradients,
                   bool last);

  // Drops the gradients of an attempt that will not be completed.
  void Drop(int32_t microbatch, int32_t attempt);

  // The same, and refuses what comes of it later. False, without effect, if it
  // is complete.
  bool Abandon(int32_t microbatch, int32_t attempt);

  // The earliest microbatch that is not in the sum.
  int64_t next() const { return sum_.next(); }

  // The sums, with attempts[i] for microbatch i. Errors: InvalidArgument if
  // they are not as many as the microbatches; FailedPrecondition if one of
  // them is not complete or not the one that counts.
  absl::StatusOr<GradientList> Take(absl::Span<const int32_t> attempts);

 private:
  struct Microbatch {
    int32_t attempt = -1;  // the highest that was seen
    bool complete = false;
    bool abandoned = false;
    TensorMap gradients;  // until complete
  };

  const std::vector<std::string> parameters_;
  OrderedSum sum_;
  std::mutex mutex_;
  std::vector<Microbatch> microbatches_;  // guarded by mutex_
};

}  // namespace gshard

#endif  // EXPERT_WORKER_STEP_GRADIENTS_H_
