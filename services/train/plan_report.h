// Reports of a plan: as aligned text for people, and as JSON for programs.

#ifndef SERVICES_TRAIN_PLAN_REPORT_H_
#define SERVICES_TRAIN_PLAN_REPORT_H_

#include <string>

#include "services/train/plan.h"

namespace gshard {

// Several aligned tables; lines end in '\n' and have at most 80 columns.
std::string PlanToText(const Plan& plan);

// One JSON object, indented; all numbers are exact.
std::string PlanToJson(const Plan& plan);

}  // namespace gshard

#endif  // SERVICES_TRAIN_PLAN_REPORT_H_
