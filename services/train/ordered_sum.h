// The sum of the microbatches of a step, in order of their index whoever
// computed them and whenever they arrive.
//
// Floating-point addition depends on its order. Adding as contributions come in
// would make training depend on timing; waiting for all would hold every one in
// memory. OrderedSum adds each as soon as those before it are there, and keeps
// those that came early.

#ifndef SERVICES_TRAIN_ORDERED_SUM_H_
#define SERVICES_TRAIN_ORDERED_SUM_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "services/base/mutex.h"
#include "services/tensor/tensor.h"

namespace gshard {

// Thread-safe.
class OrderedSum {
 public:
  // Sums the contributions of microbatches 0 .. count - 1, keeping at most
  // `max_pending` that came early. REQUIRES: count >= 1, max_pending >= 0.
  OrderedSum(int64_t count, int64_t max_pending);

  // Adds microbatch `index`'s `values`. Tensors that nobody else shares are
  // taken over, others copied. REQUIRES: float32 tensors, as many and in the
  // same shapes as of other microbatches.
  //
  // Errors, each leaving the sum as it was:
  //   OUT_OF_RANGE        `index` is not one of the microbatches
  //   ALREADY_EXISTS      this index was added before: drop the duplicate
  //   RESOURCE_EXHAUSTED  `max_pending` early ones are waiting: try again when
  //                       next() has moved
  absl::Status Add(int64_t index, std::vector<Tensor> values);

  // The lowest index that is missing; count when complete.
  int64_t next() const;
  bool complete() const;

  // The sums. REQUIRES: complete(), and not taken before.
  std::vector<Tensor> Take();

 private:
  void AddNext(std::vector<Tensor> values)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t count_;
  const int64_t max_pending_;
  mutable Mutex mutex_;
  int64_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  bool taken_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Tensor> sum_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, std::vector<Tensor>> early_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gshard

#endif  // SERVICES_TRAIN_ORDERED_SUM_H_
