// Writes a process's part of a checkpoint from a snapshot, on any thread, while
// the tensors' owner continues with updates.
//
// A snapshot is a set of tensors that share buffers with the owner's; it takes
// no memory until one of them changes: an update of a tensor that is not
// unique() replaces it (services/tensor), and the snapshot keeps the old one.
// So each snapshot causes at most one further copy of the weights.
//
// A snapshot must be released in order with its owner's updates, under their
// lock or on their thread: afterwards its tensors may be unique() again, and an
// in-place update must not race with the last read.

#ifndef SERVICES_CHECKPOINT_WRITE_SHARD_H_
#define SERVICES_CHECKPOINT_WRITE_SHARD_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/checkpoint/checkpoint.h"
#include "services/checkpoint/tensor_spec.h"

namespace gshard {

// Destination of a snapshot.
struct ShardTarget {
  std::string root;
  int64_t step = 0;
  std::string shard;
};

// Writes a complete shard. `abandoned`, which may be null, is asked before
// every tensor whether to give up the shard. Errors: Cancelled if so; those of
// CheckpointWriter.
absl::StatusOr<std::vector<TensorEntry>> WriteShard(
    const ShardTarget& target, const std::vector<NamedTensor>& tensors,
    const std::function<bool()>& abandoned = nullptr,
    FaultPoints* faults = nullptr);

}  // namespace gshard

#endif  // SERVICES_CHECKPOINT_WRITE_SHARD_H_
