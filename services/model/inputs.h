// The inputs of the model's programs (transformer.h) from padded batches.
//
// B sentences, L positions.

#ifndef SERVICES_MODEL_INPUTS_H_
#define SERVICES_MODEL_INPUTS_H_

#include <cstdint>
#include <string>

#include "services/graph/executor.h"

namespace gshard {

// Adds "<side>", "<side>_positions", "<side>_lengths" and "<side>_valid" for
// ids i32[B, L] and lengths i32[B].
void AddTokenInputs(const std::string& side, const Tensor& ids,
                    const Tensor& lengths, TensorMap& inputs);

// i64[] for the input "key".
Tensor KeyInput(uint64_t key);

}  // namespace gshard

#endif  // SERVICES_MODEL_INPUTS_H_
