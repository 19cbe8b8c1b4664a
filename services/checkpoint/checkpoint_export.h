// Exports a checkpoint's tensors to one plain safetensors file.

#ifndef SERVICES_CHECKPOINT_CHECKPOINT_EXPORT_H_
#define SERVICES_CHECKPOINT_CHECKPOINT_EXPORT_H_

#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>

#include "absl/status/statusor.h"
#include "services/checkpoint/checkpoint.h"

namespace gshard {

struct Exported {
  int64_t tensors = 0;
  uint64_t bytes = 0;  // bytes of all elements
};

// Writes the tensors that `wanted` accepts, under their names, verified; the
// file appears atomically, replacing one of the same name. Its metadata are
// "format" ("pt", as readers expect), "step" and "model_config". Holds one
// tensor at a time. Errors: FailedPrecondition if no tensor is wanted;
// Cancelled if stop is requested, checked between tensors; those of
// CheckpointReader::Read and SafetensorsWriter.
absl::StatusOr<Exported> ExportCheckpoint(
    const CheckpointReader& checkpoint, const std::string& path,
    const std::function<bool(const std::string& name)>& wanted,
    std::stop_token stop = {});

}  // namespace gshard

#endif  // SERVICES_CHECKPOINT_CHECKPOINT_EXPORT_H_
