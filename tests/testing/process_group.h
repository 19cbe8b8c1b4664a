// Devices that are processes: a test program runs itself once for each device,
// connected by gloo.
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
#include "tests/services/collectives/world.h"

namespace gshard {

// The work of a process. `folder` is the one passed to RunProcesses and holds
// the inputs and outputs of the process.
using ProcessFunction =
    std::function<absl::Status(World& world, const std::string& folder)>;

// Runs one process of this program for each name, which selects its function,
// and waits for all of them. `timeout` limits the wait for the other processes
// and each exchange; a process that hangs elsewhere is ended after twice that
// time and 10 seconds. Each folder serves one group of processes only.
//
// Returns what each process returned, by rank; Unknown with the end of its
// standard error for a process that did not get that far.
std::vector<absl::Status> RunProcesses(
    const std::vector<std::string>& names, const std::string& folder,
    std::chrono::seconds timeout = std::chrono::seconds(60));

// Runs the tests or, in a process that RunProcesses started, its function.
int ProcessGroupMain(int argc, char** argv,
                     const std::map<std::string, ProcessFunction>& functions);

}  // namespace gshard

#endif  // TESTS_TESTING_PROCESS_GROUP_H_
