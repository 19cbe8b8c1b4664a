#include "services/base/subprocess.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

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

// Appends what `fd` has to give; false at its end.
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

int WaitFor(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

// Starts the program with its output on the given descriptors.
int Spawn(const std::vector<std::string>& argv,
          const SubprocessOptions& options, int output, int error, pid_t* pid) {
  std::vector<char*> arguments;
  for (const std::string& a : argv) {
    arguments.push_back(const_cast<char*>(a.c_str()));
  }
  arguments.push_back(nullptr);
  // What the caller sets replaces what we have by that name.
  std::vector<char*> variables;
  for (const std::string& e : options.environment) {
    variables.push_back(const_cast<char*>(e.c_str()));
  }
  for (char** e = environ; e != nullptr && *e != nullptr; ++e) {
    bool replaced = false;
    for (const std::string& own : options.environment) {
      const size_t name = own.find('=') + 1;
      if (strncmp(own.c_str(), *e, name) == 0) replaced = true;
    }
    if (!replaced) variables.push_back(*e);
  }
  variables.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null",
                                   O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, error, STDERR_FILENO);
  if (!options.working_directory.empty()) {
    posix_spawn_file_actions_addchdir_np(&actions,
                                         options.working_directory.c_str());
  }
  // A server may block or ignore signals; what it starts should not inherit it.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, defaults;
  sigemptyset(&none);
  sigemptyset(&defaults);
  sigaddset(&defaults, SIGPIPE);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  const int error_number =
      posix_spawnp(pid, arguments[0], &actions, &attributes, arguments.data(),
                   variables.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error_number;
}

}  // namespace

absl::StatusOr<SubprocessResult> RunSubprocess(
    const std::vector<std::string>& argv, const SubprocessOptions& options) {
  if (argv.empty()) return absl::InternalError("no program to run");
  Pipe output, error;
  if (!output.Open() || !error.Open()) {
    return absl::InternalError(absl::StrCat("pipe: ", strerror(errno)));
  }
  pid_t pid = -1;
  const int error_number =
      Spawn(argv, options, options.show_output ? STDERR_FILENO : output.write,
            error.write, &pid);
  if (error_number == ENOENT) {
    return absl::NotFoundError(absl::StrCat("no program ", argv[0]));
  }
  if (error_number != 0) {
    return absl::InternalError(
        absl::StrCat("cannot start ", argv[0], ": ", strerror(error_number)));
  }
  Pipe::Close(&output.write);
  Pipe::Close(&error.write);

  SubprocessResult result;
  bool too_much = false;
  while (output.read >= 0 || error.read >= 0) {
    // poll ignores negative descriptors.
    pollfd fds[2] = {{output.read, POLLIN, 0}, {error.read, POLLIN, 0}};
    if (poll(fds, 2, -1) < 0) {
      if (errno == EINTR) continue;
      break;
    }
    if (fds[0].revents != 0 && !ReadSome(output.read, &result.output, false)) {
      Pipe::Close(&output.read);
    }
    if (fds[1].revents != 0 &&
        !ReadSome(error.read, &result.error_output, options.show_output)) {
      Pipe::Close(&error.read);
    }
    if (result.error_output.size() > kErrorOutputBytes) {
      result.error_output.erase(0,
                                result.error_output.size() - kErrorOutputBytes);
    }
    if (result.output.size() > options.max_output_bytes) {
      too_much = true;
      kill(pid, SIGKILL);
      break;
    }
  }
  result.exit_code = WaitFor(pid);
  if (too_much) {
    return absl::ResourceExhaustedError(absl::StrCat(
        argv[0], " wrote over ", options.max_output_bytes, " bytes"));
  }
  return result;
}

}  // namespace gshard
