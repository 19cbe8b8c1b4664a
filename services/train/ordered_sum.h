// The sum of a step's microbatches in order of their index, whichever process
// computed them and whenever they arrive.
//
// Floating-point addition depends on its order. Adding contributions as they
// arrive would make training depend on timing; waiting for all would keep all
// of them in memory. OrderedSum adds each one as soon as all earlier ones have
// been added, and keeps those that arrive early.

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
  // Sums the contributions of microbatches 0 .. count - 1, on `device`, or on
  // the host if null. Keeps early ones that are at most `max_early` after
  // next(), so at most that many. REQUIRES: count >= 1, max_early >= 0.
  OrderedSum(int64_t count, int64_t max_early, Device* device = nullptr);

  // Adds the contribution of microbatch `index`. Takes ownership of `values`;
  // tensors that are shared are not modified. REQUIRES: float32 tensors, as
  // many and in the same shapes as those of the other microbatches.
  //
  // Errors that leave the sum unchanged:
  //   OUT_OF_RANGE        `index` is not one of the microbatches
  //   ALREADY_EXISTS      this index was added before: drop the duplicate
  //   RESOURCE_EXHAUSTED  it is more than `max_early` after next(): retry when
  //                       that has advanced
  // Errors of the device end the sum, and so does RESOURCE_EXHAUSTED if there
  // is no memory to replace a shared tensor: see status().
  absl::Status Add(int64_t index, std::vector<Tensor> values);

  // The lowest index that has not been added; `count` when complete.
  int64_t next() const;
  bool complete() const;

  // OK, or the reason why the device, or for lack of memory the host, could not
  // add.
  absl::Status status() const;

  // The sums, on the device if there is one. REQUIRES: complete(), status() is
  // OK, and Take() has not been called before.
  std::vector<Tensor> Take();

 private:
  void AddNext(std::vector<Tensor> values)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status AddOnDevice(const std::vector<Tensor>& values)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t count_;
  const int64_t max_early_;
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
