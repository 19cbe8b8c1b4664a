// Differences between two checkpoints.

#ifndef SERVICES_CHECKPOINT_CHECKPOINT_DIFF_H_
#define SERVICES_CHECKPOINT_CHECKPOINT_DIFF_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/checkpoint/checkpoint.h"

namespace gshard {

// A tensor that differs.
struct TensorDifference {
  std::string name;

  // "f32[2, 3]"; empty if the checkpoint has no such tensor. The other fields
  // are filled in if types and shapes are equal.
  std::string type_a;
  std::string type_b;

  int64_t elements = 0;
  int64_t different = 0;  // number of elements with different bits

  // The largest |a - b|; infinite if one of two differing elements is not
  // finite.
  double max_abs = 0;

  // The first element that differs: its index in row-major order.
  int64_t first = 0;
  double first_a = 0;
  double first_b = 0;
};

struct CheckpointDifference {
  // "step: 10 and 20": for step, model_config, validation_loss and tokenizers.
  // Fields that only say where a job ran (metadata, shards) are not compared.
  std::vector<std::string> fields;

  int64_t tensors = 0;    // in either checkpoint
  int64_t different = 0;  // number that differ

  bool identical() const { return fields.empty() && different == 0; }
};

// Calls `seen` for each differing tensor, in order of name. Tensors with equal
// type and checksum are assumed equal and not read; use Verify to check that
// files match their checksums. Holds two tensors at a time. Errors: those of
// CheckpointReader::Read.
absl::StatusOr<CheckpointDifference> DiffCheckpoints(
    const CheckpointReader& a, const CheckpointReader& b,
    const std::function<void(const TensorDifference&)>& seen);

}  // namespace gshard

#endif  // SERVICES_CHECKPOINT_CHECKPOINT_DIFF_H_
