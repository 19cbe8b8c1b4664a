// The lists in ARCHITECTURE.md of the files that a translation and a training
// step pass.

#ifndef TESTS_TESTING_FILE_LISTS_H_
#define TESTS_TESTING_FILE_LISTS_H_

#include <string>
#include <vector>

#include "tests/testing/source_tree.h"

namespace gshard {

// There are two lists. Each has a heading "### The N files that a ..." and ends
// at the next heading. Its items have a room and then the names of files, in
// backquotes: "- `router/edge`: `intake` queues it, ..." is the file
// router/edge/intake.h, .cc or both. Each file is there, and listed once; they
// are as many as the heading says. Returns one line a violation, "path:line:
// what is wrong".
//
// Whether they are those that are executed is measured by
// tests/executed_files.py.
std::vector<std::string> FileListViolations(
    const std::vector<SourceFile>& files);

}  // namespace gshard

#endif  // TESTS_TESTING_FILE_LISTS_H_
