// Summarizes a checkpoint's content in terms of the model: dense, expert and
// optimizer tensors, grouped by shape.

#ifndef CLIENT_CHECKPOINT_SUMMARY_H_
#define CLIENT_CHECKPOINT_SUMMARY_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/checkpoint/manifest.h"

namespace gshard {

// Determined by the name, see services/model and services/train.
enum class TensorKind { kDense, kExpert, kOptimizer };

absl::string_view TensorKindName(TensorKind kind);
TensorKind KindOfTensor(absl::string_view name);

// Tensors of one shape whose names differ only in layer or expert.
struct TensorGroup {
  TensorKind kind = TensorKind::kDense;
  std::string name;  // "encoder.*.moe.wi/*"
  std::string type;  // type of each: "f32[512, 2048]"
  int64_t tensors = 0;
  uint64_t bytes = 0;  // total bytes
};

// Dense ones first, then experts', then the optimizer's; each sorted by name.
std::vector<TensorGroup> GroupTensors(const Manifest& manifest);

// Step, loss, model, tokenizers, shards, groups. `path` is shown unchanged.
std::string CheckpointToText(const std::string& path, const Manifest& manifest);
nlohmann::ordered_json CheckpointToJson(const std::string& path,
                                        const Manifest& manifest);

}  // namespace gshard

#endif  // CLIENT_CHECKPOINT_SUMMARY_H_
