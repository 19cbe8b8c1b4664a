// Gradients that fake members make up: the gradient of a tensor is a function
// of its name, the step and the microbatch, so that a test can tell what must
// come out.

#ifndef TESTS_SERVICES_COORDINATOR_FAKE_GRADIENTS_H_
#define TESTS_SERVICES_COORDINATOR_FAKE_GRADIENTS_H_

#include <cstdint>
#include <string>

#include "proto/gshard/v1/coordinator.pb.h"
#include "services/config/model_config.h"
#include "services/tensor/tensor.h"
#include "services/train/parameter_store.h"

namespace gshard {

// Of a logical tensor of a microbatch.
Tensor FakeGradient(const std::string& name, const Dims& dims, int64_t step,
                    int32_t microbatch);

// Of the parameters of `store`, summed over `count` microbatches in order.
GradientList SummedGradients(const ParameterStore& store, int64_t step,
                             int64_t count);

// What a fake router says of a microbatch.
v1::MicrobatchStats FakeStats(const ModelConfig& model, int64_t step,
                              int32_t microbatch);

// What a fake router says of a held-out microbatch after `step`: a loss of
// 8 / step nats a token in all microbatches but the first, which has one more.
v1::MicrobatchStats FakeValidationStats(const ModelConfig& model, int64_t step,
                                        int32_t microbatch);

}  // namespace gshard

#endif  // TESTS_SERVICES_COORDINATOR_FAKE_GRADIENTS_H_
