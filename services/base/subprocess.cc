#include "services/base/subprocess.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "services/base/spawn.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

constexpr size_t kErrorOutputBytes = 8 << 10;

// Both ends of a pipe, closed when the scope ends.
struct Pipe {
  int read = -1;
  int write = -1;

  bool Open() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    read = ends[0];
    write = ends[1];
    return true;
  }
  static void Close(int* fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
  }
  ~Pipe() {
    Close(&read);
    Close(&write);
  }
};

// Appends the available data of `fd`; false at its end.
bool ReadSome(int fd, std::string* text, bool show) {
  char buffer[64 << 10];
  const ssize_t n = read(fd, buffer, sizeof buffer);
  if (n < 0) return errno == EINTR;
  if (n == 0) return false;
  text->append(buffer, n);
  if (show) {
    for (ssize_t done = 0; done < n;) {
      const ssize_t written = write(STDERR_FILENO, buffer + done, n - done);
      if (written < 0 && errno != EINTR) break;
      if (written > 0) done += written;
    }
  }
  return true;
}

// Returns when the child has exited; it stays a zombie.
void AwaitEnd(pid_t pid) {
  siginfo_t info;
  while (waitid(P_PID, pid, &info, WEXITED | WNOWAIT) < 0 && errno == EINTR) {
  }
}

int Reap(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

// Reads until both are closed; false if the output exceeds its limit.
bool ReadAll(Pipe& output, Pipe& error, const SubprocessOptions& options,
             SubprocessResult* result) {
  while (output.read >= 0 || error.read >= 0) {
    // poll ignores negative descriptors.
    pollfd fds[2] = {{output.read, POLLIN, 0}, {error.read, POLLIN, 0}};
    if (poll(fds, 2, -1) < 0) {
      if (errno == EINTR) continue;
      break;
    }
    if (fds[0].revents != 0 && !ReadSome(output.read, &result->output, false)) {
      Pipe::Close(&output.read);
    }
    if (fds[1].revents != 0 &&
        !ReadSome(error.read, &result->error_output, options.show_output)) {
      Pipe::Close(&error.read);
    }
    std::string& said = result->error_output;
    if (said.size() > kErrorOutputBytes) {
      said.erase(0, said.size() - kErrorOutputBytes);
    }
    if (result->output.size() > options.max_output_bytes) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<SubprocessResult> RunSubprocess(
    const std::vector<std::string>& argv, const SubprocessOptions& options) {
  if (options.stop.stop_requested()) {
    return absl::CancelledError("told to stop before it began");
  }
  Pipe output, error;
  if (!output.Open() || !error.Open()) {
    return absl::InternalError(absl::StrCat("pipe: ", strerror(errno)));
  }
  ASSIGN_OR_RETURN(
      const pid_t pid,
      Spawn(argv, {.environment = options.environment,
                   .working_directory = options.working_directory,
                   .output = options.show_output ? STDERR_FILENO : output.write,
                   .error = error.write}));
  Pipe::Close(&output.write);
  Pipe::Close(&error.write);

  SubprocessResult result;
  bool too_much = false;
  {
    // Until it is reaped, its pid cannot be reused.
    const std::stop_callback kill_it(options.stop,
                                     [pid] { kill(pid, SIGKILL); });
    too_much = !ReadAll(output, error, options, &result);
    if (too_much) kill(pid, SIGKILL);
    AwaitEnd(pid);
  }
  result.exit_code = Reap(pid);
  if (options.stop.stop_requested()) {
    return absl::CancelledError(absl::StrCat(argv[0], " was told to stop"));
  }
  if (too_much) {
    return absl::ResourceExhaustedError(absl::StrCat(
        argv[0], " wrote over ", options.max_output_bytes, " bytes"));
  }
  return result;
}

}  // namespace gshard
