// Runs another program to completion: no shell, arguments verbatim.

#ifndef SERVICES_BASE_SUBPROCESS_H_
#define SERVICES_BASE_SUBPROCESS_H_

#include <cstddef>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace gshard {

struct SubprocessOptions {
  // "NAME=value", added to this process's environment.
  std::vector<std::string> environment = {};
  // Folder to run in; empty for the current one.
  std::string working_directory = {};
  // Forward the program's output to standard error as it arrives; its standard
  // output is then not returned.
  bool show_output = false;
  // A program that writes more is killed.
  size_t max_output_bytes = size_t{1} << 30;
  // Kills the program when stop is requested.
  std::stop_token stop = {};
};

struct SubprocessResult {
  int exit_code = 0;         // 128 + number if a signal ended it
  std::string output;        // its standard output
  std::string error_output;  // the last 8 KiB of its standard error
};

// Runs argv[0], found along PATH unless it contains a '/', with empty standard
// input, and waits for it to exit. The program is killed if this process ends
// first, for any reason. The caller decides which exit codes are failures.
//
// Errors: NotFound if there is no such program, ResourceExhausted if it writes
// more than max_output_bytes, Cancelled if stop was requested, Internal if
// starting it fails for another reason.
absl::StatusOr<SubprocessResult> RunSubprocess(
    const std::vector<std::string>& argv,
    const SubprocessOptions& options = {});

}  // namespace gshard

#endif  // SERVICES_BASE_SUBPROCESS_H_
