// The rules that keep the tree's shape, checked on the text of its files.
//
// A place is a file's folder as the rules see it: "services/moe", "router",
// "client". A test's place is that of what it tests (tests/router/x_test.cc is
// in router); tests that cross rooms (tests/integration, ...) may use anything.
//
// Every function returns one line per violation, "path:line: what is wrong",
// and nothing if the rule holds.

#ifndef TESTS_TESTING_SOURCE_RULES_H_
#define TESTS_TESTING_SOURCE_RULES_H_

#include <string>
#include <vector>

#include "tests/testing/source_tree.h"

namespace gshard {

// The rooms, lowest first, from the text of CMakeLists.txt.
std::vector<std::string> RoomOrder(const std::string& cmake_lists);

// A room uses only rooms above it in CMakeLists.txt. A folder outside that list
// is part of the nearest room around it. Rooms never use a process folder, and
// of those only the client, which can run all roles in one process, uses
// another. Each room has a line in the map of ARCHITECTURE.md.
std::vector<std::string> LayeringViolations(
    const std::vector<SourceFile>& files);

// Headers of gRPC, protobuf and other libraries stay in the rooms that wrap
// them.
std::vector<std::string> FenceViolations(const std::vector<SourceFile>& files);

// No file is too long, has a catch-all name ("util") or contains marks of
// unfinished work; no test is disabled; guards match paths; every source file
// is built; locks are those of services/base/mutex.h, except in tests.
std::vector<std::string> TidyViolations(const std::vector<SourceFile>& files);

}  // namespace gshard

#endif  // TESTS_TESTING_SOURCE_RULES_H_
