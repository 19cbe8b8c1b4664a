// The table of failures in ARCHITECTURE.md: each of its rows names tests that
// there are.

#ifndef TESTS_TESTING_FAILURE_TABLE_H_
#define TESTS_TESTING_FAILURE_TABLE_H_

#include <string>
#include <vector>

#include "tests/testing/source_tree.h"

namespace gshard {

// The table is the one whose first column is headed "what fails". Its last cell
// holds names of tests, `Suite.Name`, or of scripts under tests/, each in
// backquotes. Returns one line a violation, "path:line: what is wrong".
std::vector<std::string> FailureTableViolations(
    const std::vector<SourceFile>& files);

}  // namespace gshard

#endif  // TESTS_TESTING_FAILURE_TABLE_H_
