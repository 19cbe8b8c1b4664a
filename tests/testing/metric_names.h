// The metrics that alerts and dashboards ask for are metrics that there are.

#ifndef TESTS_TESTING_METRIC_NAMES_H_
#define TESTS_TESTING_METRIC_NAMES_H_

#include <string>
#include <vector>

#include "tests/testing/source_tree.h"

namespace gshard {

// Prometheus evaluates an unknown name to nothing, so an alert on it is silent
// forever. Looks for names in deploy/monitoring and deploy/kubernetes, and for
// their definitions, as whole string literals, in the code. Returns one line a
// violation, "path:line: what is wrong".
std::vector<std::string> MetricNameViolations(
    const std::vector<SourceFile>& files);

}  // namespace gshard

#endif  // TESTS_TESTING_METRIC_NAMES_H_
