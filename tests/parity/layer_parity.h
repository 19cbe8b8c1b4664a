// A whole MoE layer, forward and backward, against recorded float64 numbers to
// 1e-5: the gate as a function, which is given the recorded random numbers, and
// dispatch, experts and combine as a program.

#ifndef TESTS_PARITY_LAYER_PARITY_H_
#define TESTS_PARITY_LAYER_PARITY_H_

#include <string>

#include "services/graph/device.h"

namespace gshard {

inline constexpr const char* kLayerFixtures[] = {"before", "padded_before",
                                                 "random_before"};

// Runs the program on `backend`, and on `device` unless that is null.
void CheckLayer(const std::string& fixture, Backend backend, Device* device);

}  // namespace gshard

#endif  // TESTS_PARITY_LAYER_PARITY_H_
