// Made-up gradients of fake members: each is a function of the tensor's name,
// the step and the microbatch, so that tests can compute the expected result.

#ifndef TESTS_SERVICES_COORDINATOR_FAKE_GRADIENTS_H_
#define TESTS_SERVICES_COORDINATOR_FAKE_GRADIENTS_H_

#include <cstdint>
#include <string>

#include "proto/gshard/v1/coordinator.pb.h"
#include "services/config/model_config.h"
#include "services/tensor/tensor.h"
#include "services/train/parameter_store.h"

namespace gshard {

// The gradient of a logical tensor in a microbatch.
Tensor FakeGradient(const std::string& name, const Dims& dims, int64_t step,
                    int32_t microbatch);

// Gradients of `store`'s parameters, summed over `count` microbatches in order.
GradientList SummedGradients(const ParameterStore& store, int64_t step,
                             int64_t count);

// The statistics that a fake router reports for a microbatch.
v1::MicrobatchStats FakeStats(const ModelConfig& model, int64_t step,
                              int32_t microbatch);

// The statistics that a fake router reports for a held-out microbatch after
// `step`: a loss of 8 / step nats per token, plus one nat in the first
// microbatch.
v1::MicrobatchStats FakeValidationStats(const ModelConfig& model, int64_t step,
                                        int32_t microbatch);

}  // namespace gshard

#endif  // TESTS_SERVICES_COORDINATOR_FAKE_GRADIENTS_H_
