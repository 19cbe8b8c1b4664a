// ChildProcess: a child process with its output in a file.

#ifndef CLIENT_CHILD_PROCESS_H_
#define CLIENT_CHILD_PROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace gshard {

// Not thread-safe.
class ChildProcess {
 public:
  // Runs argv[0], a path. Both outputs are appended to `log_path`. The child
  // has its own process group, so that Ctrl-C reaches only its parent, and gets
  // SIGTERM when the thread that started it ends, or its process is killed.
  //
  // Errors: NotFound if there is no such program; FailedPrecondition if the log
  // cannot be opened; Internal if starting the child fails for another reason.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(
      const std::string& name, const std::vector<std::string>& argv,
      const std::string& log_path);

  // Kills the child if it is running.
  ~ChildProcess();

  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  const std::string& name() const { return name_; }
  const std::string& log_path() const { return log_path_; }
  pid_t pid() const { return pid_; }

  // How it ended, "exit status 1" or "signal 9 (Killed)"; nothing while it
  // runs.
  const std::optional<std::string>& Ended();

  // The last lines that it has written to its log.
  std::string LastLogLines(int lines) const;

  // Whether it ended with exit status 0.
  bool Succeeded();

  // Whether a signal ended it: SIGTERM kills a program that has not installed
  // its handler yet.
  bool EndedBy(int signal);

  // Sends SIGTERM if it is running.
  void Terminate();

  // Waits for the child's end; kills it after `grace`. Returns whether that was
  // not needed.
  bool WaitOrKill(std::chrono::milliseconds grace);

 private:
  ChildProcess(std::string name, std::string log_path, int64_t log_start,
               pid_t pid);

  const std::string name_;
  const std::string log_path_;
  const int64_t log_start_;  // where its part begins
  const pid_t pid_;
  std::optional<std::string> ended_;
  int status_ = -1;  // as waitpid() says, once ended_
};

// The last lines of a file from byte `start` on, for error messages; empty if
// it cannot be read.
std::string LastLines(const std::string& path, int lines, int64_t start = 0);

}  // namespace gshard

#endif  // CLIENT_CHILD_PROCESS_H_
