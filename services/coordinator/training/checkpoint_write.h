// CheckpointWrite: a checkpoint of a job, written while its steps continue.
//
// The members that hold parameters, and the coordinator for dense ones that it
// holds, have taken snapshots between two steps and write them. When all shards
// are complete the checkpoint is committed.

#ifndef SERVICES_COORDINATOR_TRAINING_CHECKPOINT_WRITE_H_
#define SERVICES_COORDINATOR_TRAINING_CHECKPOINT_WRITE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/checkpoint/checkpoint.h"
#include "services/checkpoint/write_shard.h"
#include "services/coordinator/training/fan_out.h"
#include "services/coordinator/training/job_context.h"

namespace gshard {

// Used only on the job's thread.
class CheckpointWrite {
 public:
  // Sends members `commands` to write their shards. `dense` is the
  // coordinator's snapshot; nothing if it has none. `context`, which has the
  // folder, outlives this.
  CheckpointWrite(JobContext* context, int64_t step,
                  std::optional<double> validation_loss,
                  MemberCommands commands,
                  std::optional<std::vector<NamedTensor>> dense);
  // Abandons the checkpoint, unless only the commit is missing.
  ~CheckpointWrite() { Abandon(); }
  CheckpointWrite(const CheckpointWrite&) = delete;
  CheckpointWrite& operator=(const CheckpointWrite&) = delete;

  int64_t step() const { return step_; }

  // Processes results that have arrived.
  void Poll();

  // Whether it has ended; path() is the outcome: the path or an error.
  bool done() const { return path_.has_value(); }
  const absl::StatusOr<std::string>& path() const { return *path_; }
  // The member that failed; none if it was the coordinator or its disk.
  const std::optional<MemberKey>& failed_member() const {
    return failed_member_;
  }
  // Whether only the coordinator's commit is missing.
  bool has_all_shards() const { return commit_ != nullptr; }

  // Abandons it and removes its files; or completes it, if only the commit is
  // missing: it is then done() and has a path. Waits for the tensor being
  // written, as JobContext::AwaitEnd().
  void Drop();

 private:
  // The snapshot that the disk thread reads.
  struct Dense {
    std::vector<NamedTensor> tensors;  // released on the job's thread
    std::atomic<bool> abandoned{false};
  };

  // Records a failure.
  void Fail(const absl::Status& status,
            std::optional<MemberKey> by_member = std::nullopt);
  void BeginCommit();
  void Abandon() {
    if (!has_all_shards()) dense_->abandoned = true;
  }
  // Whether the disk thread has no work for this.
  bool idle() const;

  JobContext* const context_;
  const int64_t step_;
  const std::optional<double> validation_loss_;
  std::vector<MemberKey> writers_;
  const std::shared_ptr<Dense> dense_ = std::make_shared<Dense>();
  std::shared_ptr<const MemberReplies> replies_;
  Awaited<std::vector<TensorEntry>> dense_entries_;  // null without a snapshot
  Awaited<std::string> commit_;                      // null before
  std::optional<absl::StatusOr<std::string>> path_;
  std::optional<MemberKey> failed_member_;
};

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_TRAINING_CHECKPOINT_WRITE_H_
