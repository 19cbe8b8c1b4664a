// Checks that the metrics in alerts and dashboards exist.

#ifndef TESTS_TESTING_METRIC_NAMES_H_
#define TESTS_TESTING_METRIC_NAMES_H_

#include <string>
#include <vector>

#include "tests/testing/source_tree.h"

namespace gshard {

// Prometheus evaluates an unknown name to nothing, so an alert on it never
// fires. Looks for names in deploy/monitoring and deploy/kubernetes, and for
// their definitions, as whole string literals, in the code. Returns one line
// per violation, "path:line: what is wrong".
std::vector<std::string> MetricNameViolations(
    const std::vector<SourceFile>& files);

}  // namespace gshard

#endif  // TESTS_TESTING_METRIC_NAMES_H_
