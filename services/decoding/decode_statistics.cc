#include "services/decoding/decode_statistics.h"

#include "absl/strings/strip.h"

namespace gshard {

void AddLayerLoads(const Program& program, const std::vector<Tensor>& outputs,
                   DecodeStatistics* statistics) {
  if (statistics == nullptr) return;
  const auto layer = [&](absl::string_view name) -> LayerLoad& {
    for (LayerLoad& load : statistics->layers) {
      if (load.layer == name) return load;
    }
    return statistics->layers.emplace_back(
        LayerLoad{.layer = std::string(name), .expert_rows = {}});
  };
  for (size_t i = 0; i < outputs.size(); ++i) {
    absl::string_view name = program.outputs[i].first;
    if (absl::ConsumePrefix(&name, "kept/")) {
      std::vector<int64_t>& rows = layer(name).expert_rows;
      rows.resize(outputs[i].size());
      for (int64_t e = 0; e < outputs[i].size(); ++e) {
        rows[e] += outputs[i].i32()[e];
      }
    } else if (absl::ConsumePrefix(&name, "overflow/")) {
      layer(name).overflow_first += outputs[i].i32()[0];
      layer(name).overflow_second += outputs[i].i32()[1];
    }
  }
}

}  // namespace gshard
