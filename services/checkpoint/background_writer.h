// Writes checkpoints while training goes on, one at a time.
//
//   std::vector<NamedTensor> tensors = ...;  // copies that share buffers
//   writer.Start(step, root, "worker-3", std::move(tensors));
//   ...                                      // the next steps
//   if (auto done = writer.Poll(); done.has_value()) ...
//
// A snapshot costs no memory until a tensor changes: whoever updates a tensor
// that is not unique() replaces it (services/tensor), and the writer keeps the
// old one. At most one checkpoint is in flight, so at most one further copy of
// the weights exists.

#ifndef SERVICES_CHECKPOINT_BACKGROUND_WRITER_H_
#define SERVICES_CHECKPOINT_BACKGROUND_WRITER_H_

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/checkpoint/checkpoint.h"
#include "services/checkpoint/tensor_spec.h"

namespace gshard {

// Writes one process's shard from first to last. Errors: those of
// CheckpointWriter.
absl::StatusOr<std::vector<TensorEntry>> WriteShard(
    const std::string& root, int64_t step, const std::string& shard,
    const std::vector<NamedTensor>& tensors, FaultPoints* faults = nullptr);

// Its methods are called by one thread, the owner; a thread of its own writes.
class BackgroundWriter {
 public:
  struct Result {
    int64_t step = 0;
    absl::StatusOr<std::vector<TensorEntry>> entries;
  };

  explicit BackgroundWriter(FaultPoints* faults = nullptr);
  ~BackgroundWriter();  // waits for the shard in flight
  BackgroundWriter(const BackgroundWriter&) = delete;
  BackgroundWriter& operator=(const BackgroundWriter&) = delete;

  // Begins to write, and returns at once. The snapshot is let go by the owner's
  // thread, in Poll or Wait: from then on, and not before, its tensors may be
  // unique() again, so that no update races with a read. Errors:
  // FailedPrecondition if the last result was not taken yet; nothing was begun
  // then, and the owner has to Wait, which bounds the memory and keeps the
  // order.
  absl::Status Start(int64_t step, const std::string& root,
                     const std::string& shard,
                     std::vector<NamedTensor> tensors);

  // Started, and its result not taken.
  bool busy() const { return task_.has_value(); }

  // The result, once; nothing while it is being written, or if none was begun.
  // An error of the writing is in the result: it must reach the job at its next
  // step.
  std::optional<Result> Poll();

  // The same, after waiting for it.
  std::optional<Result> Wait();

 private:
  struct Task {
    int64_t step;
    std::string root;
    std::string shard;
    std::vector<NamedTensor> tensors;
  };

  void Run();
  std::optional<Result> Take(bool wait);

  FaultPoints* const faults_;
  std::optional<Task> task_;  // changed by the owner, and only while idle_

  std::mutex mutex_;
  std::condition_variable changed_;
  bool idle_ = true;       // guarded by mutex_
  bool stopping_ = false;  // guarded by mutex_
  std::optional<absl::StatusOr<std::vector<TensorEntry>>> entries_;  // likewise

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace gshard

#endif  // SERVICES_CHECKPOINT_BACKGROUND_WRITER_H_
