// Checks the table of failures in ARCHITECTURE.md: each row must name existing
// tests.

#ifndef TESTS_TESTING_FAILURE_TABLE_H_
#define TESTS_TESTING_FAILURE_TABLE_H_

#include <string>
#include <vector>

#include "tests/testing/source_tree.h"

namespace gshard {

// The table's first column is headed "what fails". The last cell of a row holds
// names of tests, `Suite.Name`, or of scripts under tests/, each in backquotes.
// Returns one line per violation, "path:line: what is wrong".
std::vector<std::string> FailureTableViolations(
    const std::vector<SourceFile>& files);

}  // namespace gshard

#endif  // TESTS_TESTING_FAILURE_TABLE_H_
