// DecodeStatistics: the model's work during translation.

#ifndef SERVICES_DECODING_DECODE_STATISTICS_H_
#define SERVICES_DECODING_DECODE_STATISTICS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "services/graph/program.h"
#include "services/tensor/tensor.h"

namespace gshard {

// Work of one MoE layer.
struct LayerLoad {
  std::string layer;
  std::vector<int64_t> expert_rows;  // [E]
  int64_t overflow_first = 0;
  int64_t overflow_second = 0;
};

struct DecodeStatistics {
  std::vector<LayerLoad> layers;  // in the order of execution
  int64_t decoded_tokens = 0;     // over all hypotheses
  int64_t steps = 0;              // decoder steps
};

// Adds the MoE reports in the outputs of `program`, unless `statistics` is
// null.
void AddLayerLoads(const Program& program, const std::vector<Tensor>& outputs,
                   DecodeStatistics* statistics);

}  // namespace gshard

#endif  // SERVICES_DECODING_DECODE_STATISTICS_H_
