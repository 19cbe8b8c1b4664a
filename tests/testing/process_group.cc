#include "tests/testing/process_group.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/base/subprocess.h"
#include "tests/services/collectives/gloo_world.h"
#include "tests/testing/gloo_members.h"

namespace gshard {
namespace {

// PROGRAM --process NAME RANK SIZE FOLDER SECONDS
constexpr char kProcess[] = "--process";
constexpr int kArguments = 7;
// Exit code of a process whose function returned an error, which is then the
// last line of its standard error, after the number of its code. No sanitizer
// uses this exit code.
constexpr int kFailed = 100;

absl::Status RunFunction(const ProcessFunction& function, char** argv) {
  const std::string folder = argv[5];
  const std::chrono::seconds timeout(std::atoi(argv[6]));
  // Ends a process that hangs without its parent's help.
  alarm(static_cast<unsigned>(2 * timeout.count() + 10));
  ASSIGN_OR_RETURN(const auto world, GlooWorld::Create(MemberOptions(
                                         folder, std::atoi(argv[3]),
                                         std::atoi(argv[4]), timeout)));
  return function(*world, folder);
}

absl::Status StatusOf(const absl::StatusOr<SubprocessResult>& result) {
  RETURN_IF_ERROR(result.status());
  if (result->exit_code == 0) return absl::OkStatus();
  const std::string& text = result->error_output;
  const size_t mark = text.rfind(kProcess);
  if (result->exit_code != kFailed || mark == std::string::npos) {
    return absl::UnknownError(absl::StrCat("the process ended with exit code ",
                                           result->exit_code, ": ", text));
  }
  char* message = nullptr;
  const long code =
      std::strtol(text.c_str() + mark + std::strlen(kProcess), &message, 10);
  return absl::Status(static_cast<absl::StatusCode>(code), message + 1);
}

}  // namespace

std::vector<absl::Status> RunProcesses(const std::vector<std::string>& names,
                                       const std::string& folder,
                                       std::chrono::seconds timeout) {
  const int size = static_cast<int>(names.size());
  std::vector<absl::Status> statuses(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      statuses[rank] = StatusOf(RunSubprocess(
          {"/proc/self/exe", kProcess, names[rank], std::to_string(rank),
           std::to_string(size), folder, std::to_string(timeout.count())}));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

int ProcessGroupMain(int argc, char** argv,
                     const std::map<std::string, ProcessFunction>& functions) {
  if (argc != kArguments || std::strcmp(argv[1], kProcess) != 0) {
    ::testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
  }
  const auto function = functions.find(argv[2]);
  const absl::Status status =
      function == functions.end()
          ? absl::NotFoundError(absl::StrCat("no function '", argv[2], "'"))
          : RunFunction(function->second, argv);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s %d %s", kProcess, status.raw_code(),
               std::string(status.message()).c_str());
  return kFailed;
}

}  // namespace gshard
