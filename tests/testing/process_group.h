// Devices that are processes: a test program that runs itself once for each of
// them, connected by gloo.
//
//   absl::Status AddUp(World& world, const std::string& folder) { ... }
//
//   TEST(SumTest, OfThreeProcesses) {
//     const RendezvousFolder folder;
//     for (const absl::Status& status :
//          RunProcesses({"add", "add", "add"}, folder.path())) {
//       EXPECT_OK(status);
//     }
//   }
//
//   int main(int argc, char** argv) {
//     return ProcessGroupMain(argc, argv, {{"add", AddUp}});
//   }

#ifndef TESTS_TESTING_PROCESS_GROUP_H_
#define TESTS_TESTING_PROCESS_GROUP_H_

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "services/collectives/world.h"

namespace gshard {

// What a process does. `folder` is the one that RunProcesses was given: there
// it finds what it works on, and leaves what comes out.
using ProcessFunction =
    std::function<absl::Status(World& world, const std::string& folder)>;

// Runs one process of this program for each name, which says what it does, and
// waits for all of them. Neither waiting for the others nor an exchange takes a
// process longer than `timeout`; one that hangs elsewhere is ended after twice
// that time and 10 seconds. The folder serves one group of processes only.
//
// What each process returned, by rank; Unknown with the end of its standard
// error for one that did not get that far.
std::vector<absl::Status> RunProcesses(
    const std::vector<std::string>& names, const std::string& folder,
    std::chrono::seconds timeout = std::chrono::seconds(60));

// The tests, or, in a process that RunProcesses started, its function.
int ProcessGroupMain(int argc, char** argv,
                     const std::map<std::string, ProcessFunction>& functions);

}  // namespace gshard

#endif  // TESTS_TESTING_PROCESS_GROUP_H_
