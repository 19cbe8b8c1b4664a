// A plan for people, as aligned text, and for programs, as JSON.

#ifndef SERVICES_TRAIN_PLAN_REPORT_H_
#define SERVICES_TRAIN_PLAN_REPORT_H_

#include <string>

#include "services/train/plan.h"

namespace gshard {

// Several aligned tables; lines end in '\n' and hold at most 80 columns.
std::string PlanToText(const Plan& plan);

// One object, indented; every number exact.
std::string PlanToJson(const Plan& plan);

}  // namespace gshard

#endif  // SERVICES_TRAIN_PLAN_REPORT_H_
