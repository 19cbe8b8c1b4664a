// Starts another program: no shell, arguments verbatim.

#ifndef SERVICES_BASE_SPAWN_H_
#define SERVICES_BASE_SPAWN_H_

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace gshard {

struct SpawnOptions {
  // "NAME=value", added to this process's environment.
  std::vector<std::string> environment = {};
  // Folder to run in; empty for the current one.
  std::string working_directory = {};
  // Descriptors of this process that become its output; its standard input is
  // empty.
  int output = -1;
  int error = -1;
  // The signal that it gets when the thread that started it ends in any way,
  // including SIGKILL of this process.
  int death_signal = SIGKILL;
  // If set, Ctrl-C reaches only this process.
  bool own_process_group = false;
};

// Starts argv[0], found along PATH unless it contains a '/'. The caller must
// wait for the returned process.
//
// Errors: NotFound if there is no such program; Internal if starting it fails
// for another reason.
absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& argv,
                            const SpawnOptions& options);

}  // namespace gshard

#endif  // SERVICES_BASE_SPAWN_H_
