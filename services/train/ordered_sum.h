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
#include "services/graph/device.h"
#include "services/tensor/tensor.h"

namespace gshard {

// Thread-safe.
class OrderedSum {
 public:
  // Sums the contributions of microbatches 0 .. count - 1, keeping at most
  // `max_pending` that came early; on `device`, or where that is null on the
  // host. REQUIRES: count >= 1, max_pending >= 0.
  OrderedSum(int64_t count, int64_t max_pending, Device* device = nullptr);

  // Adds microbatch `index`'s `values`. They are taken
  // over; those that others share are not changed. REQUIRES: float32 tensors,
  // as many and in the same shapes as of other microbatches.
  //
  // Errors, each leaving the sum as it was:
  //   OUT_OF_RANGE        `index` is not one of the microbatches
  //   ALREADY_EXISTS      this index was added before: drop the duplicate
  //   RESOURCE_EXHAUSTED  `max_pending` early ones are waiting: try again when
  //                       next() has moved
  // and those of the device, which are the end of the sum: see status().
  absl::Status Add(int64_t index, std::vector<Tensor> values);

  // The lowest index that is missing; count when complete.
  int64_t next() const;
  bool complete() const;

  // OK, or why the device could not add.
  absl::Status status() const;

  // The sums, on the device if there is one. REQUIRES: complete() and OK, and
  // not taken before.
  std::vector<Tensor> Take();

 private:
  void AddNext(std::vector<Tensor> values)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status AddOnDevice(const std::vector<Tensor>& values)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t count_;
  const int64_t max_pending_;
  Device* const device_;  // may be null
  mutable Mutex mutex_;
  int64_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  bool taken_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::vector<Tensor> sum_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, std::vector<Tensor>> early_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gshard

#endif  // SERVICES_TRAIN_ORDERED_SUM_H_
