// What a checkpoint holds, in the words of the model: which tensors are dense,
// experts' or the optimizer's, and which are alike.

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

// By its name, as services/model and services/train give it.
enum class TensorKind { kDense, kExpert, kOptimizer };

absl::string_view TensorKindName(TensorKind kind);
TensorKind KindOfTensor(absl::string_view name);

// Tensors of one shape whose names differ in layer or expert only.
struct TensorGroup {
  TensorKind kind = TensorKind::kDense;
  std::string name;  // "encoder.*.moe.wi/*"
  std::string type;  // of one: "f32[512, 2048]"
  int64_t tensors = 0;
  uint64_t bytes = 0;  // of all
};

// Dense ones first, then experts', then the optimizer's; each in order of name.
std::vector<TensorGroup> GroupTensors(const Manifest& manifest);

// Step, loss, model, tokenizers, shards, groups. `path` is shown as it is.
std::string CheckpointToText(const std::string& path, const Manifest& manifest);
nlohmann::ordered_json CheckpointToJson(const std::string& path,
                                        const Manifest& manifest);

}  // namespace gshard

#endif  // CLIENT_CHECKPOINT_SUMMARY_H_
