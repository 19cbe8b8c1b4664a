// What differs between two checkpoints.

#ifndef SERVICES_CHECKPOINT_CHECKPOINT_DIFF_H_
#define SERVICES_CHECKPOINT_CHECKPOINT_DIFF_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/checkpoint/checkpoint.h"

namespace gshard {

// One tensor that is not the same in both.
struct TensorDifference {
  std::string name;

  // "f32[2, 3]"; empty where the checkpoint has no such tensor. The rest is
  // filled in if they are equal.
  std::string type_a;
  std::string type_b;

  int64_t elements = 0;
  int64_t different = 0;  // elements of which a bit differs

  // The largest |a - b|; infinite if one of two elements that differ is not
  // finite.
  double max_abs = 0;

  // The first element that differs: its index in row-major order.
  int64_t first = 0;
  double first_a = 0;
  double first_b = 0;
};

struct CheckpointDifference {
  // "step: 10 and 20": of step, model_config, validation_loss and tokenizers.
  // What only says where a job ran (metadata, shards) is not compared.
  std::vector<std::string> fields;

  int64_t tensors = 0;    // in either
  int64_t different = 0;  // of these

  bool identical() const { return fields.empty() && different == 0; }
};

// Calls `seen` for each tensor that differs, in order of name. Tensors of equal
// type and checksum are taken for equal and not read, so this compares what was
// written; whether it is still there is for Verify to say. Holds two tensors at
// a time. Errors: those of CheckpointReader::Read.
absl::StatusOr<CheckpointDifference> DiffCheckpoints(
    const CheckpointReader& a, const CheckpointReader& b,
    const std::function<void(const TensorDifference&)>& seen);

}  // namespace gshard

#endif  // SERVICES_CHECKPOINT_CHECKPOINT_DIFF_H_
