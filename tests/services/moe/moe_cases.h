// Cases for every operator of services/moe.

#ifndef TESTS_SERVICES_MOE_MOE_CASES_H_
#define TESTS_SERVICES_MOE_MOE_CASES_H_

#include <vector>

#include "tests/testing/op_case.h"

namespace gshard {

// The first is of top2_gating, with losses.
std::vector<OpCase> MoeCases();

}  // namespace gshard

#endif  // TESTS_SERVICES_MOE_MOE_CASES_H_
