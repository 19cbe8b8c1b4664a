// Checks the lists in ARCHITECTURE.md of the files that a translation and a
// training step pass through.

#ifndef TESTS_TESTING_FILE_LISTS_H_
#define TESTS_TESTING_FILE_LISTS_H_

#include <string>
#include <vector>

#include "tests/testing/source_tree.h"

namespace gshard {

// There are two lists. Each has a heading "### The N files that a ..." and ends
// at the next heading. Its items name a room and then files, in backquotes: "-
// `router/edge`: `intake` queues it, ..." stands for router/edge/intake.h, .cc
// or both. Each file must exist and be listed once, and their number must be
// that of the heading. Returns one line per violation, "path:line: what is
// wrong".
//
// tests/executed_files.py measures whether these files are the ones executed.
std::vector<std::string> FileListViolations(
    const std::vector<SourceFile>& files);

}  // namespace gshard

#endif  // TESTS_TESTING_FILE_LISTS_H_
