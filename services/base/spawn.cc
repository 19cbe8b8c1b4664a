#include "services/base/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace gshard {
namespace {

// Everything that the new process needs, prepared beforehand: it may only make
// system calls until exec.
struct Program {
  std::vector<char*> arguments;
  std::vector<char*> variables;
  const char* directory;  // null: the current one
  int input, output, error;
  int failure;  // pipe to which it writes errno if exec fails
  int death_signal;
  bool own_process_group;
  pid_t parent;
};

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) {
    pointers.push_back(const_cast<char*>(text.c_str()));
  }
  return pointers;
}

// The caller's variables replace this process's of the same name.
std::vector<char*> Variables(const std::vector<std::string>& own) {
  std::vector<char*> variables = Pointers(own);
  for (char** e = environ; e != nullptr && *e != nullptr; ++e) {
    bool replaced = false;
    for (const std::string& variable : own) {
      const size_t name = variable.find('=') + 1;
      if (strncmp(variable.c_str(), *e, name) == 0) replaced = true;
    }
    if (!replaced) variables.push_back(*e);
  }
  variables.push_back(nullptr);
  return variables;
}

// A server may block or handle signals; its children should not inherit that.
// Signals that the user ignores, such as SIGHUP under nohup, stay ignored.
void ResetSignals() {
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction action;
    if (sigaction(number, nullptr, &action) != 0) continue;
    if (action.sa_handler == SIG_IGN && number != SIGPIPE) continue;
    action = {};
    action.sa_handler = SIG_DFL;
    sigaction(number, &action, nullptr);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

// Returns errno on failure.
int Become(const Program& program) {
  ResetSignals();
  if (program.own_process_group) setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, program.death_signal);
  if (getppid() != program.parent) _exit(127);  // parent ended before prctl()
  if (program.directory != nullptr && chdir(program.directory) != 0) {
    return errno;
  }
  dup2(program.input, STDIN_FILENO);
  dup2(program.output, STDOUT_FILENO);
  dup2(program.error, STDERR_FILENO);
  execvpe(program.arguments[0], program.arguments.data(),
          program.variables.data());
  return errno;
}

// fork() of a large process would copy its page tables.
pid_t Start(const Program& program) {
  const pid_t pid = vfork();
  if (pid != 0) return pid;
  const int error_number = Become(program);
  [[maybe_unused]] const ssize_t written =
      write(program.failure, &error_number, sizeof error_number);
  _exit(127);
}

}  // namespace

absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& argv,
                            const SpawnOptions& options) {
  if (argv.empty()) return absl::InternalError("no program to run");
  int failure[2];
  if (pipe2(failure, O_CLOEXEC) != 0) {
    return absl::InternalError(absl::StrCat("pipe: ", strerror(errno)));
  }
  Program program = {.arguments = Pointers(argv),
                     .variables = Variables(options.environment),
                     .directory = options.working_directory.empty()
                                      ? nullptr
                                      : options.working_directory.c_str(),
                     .input = open("/dev/null", O_RDONLY | O_CLOEXEC),
                     .output = options.output,
                     .error = options.error,
                     .failure = failure[1],
                     .death_signal = options.death_signal,
                     .own_process_group = options.own_process_group,
                     .parent = getpid()};
  program.arguments.push_back(nullptr);
  // Blocks signals until the child has reset this process's handlers, which
  // would otherwise run in the child.
  sigset_t all, former;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &former);
  const pid_t pid = Start(program);
  int error_number = pid < 0 ? errno : 0;
  pthread_sigmask(SIG_SETMASK, &former, nullptr);
  close(program.input);
  close(failure[1]);
  // The pipe is empty once the program runs.
  const bool failed =
      pid > 0 && read(failure[0], &error_number, sizeof error_number) > 0;
  close(failure[0]);
  if (failed) waitpid(pid, nullptr, 0);
  if (pid > 0 && !failed) return pid;
  if (error_number == ENOENT) {
    return absl::NotFoundError(absl::StrCat("no program ", argv[0]));
  }
  return absl::InternalError(
      absl::StrCat("cannot start ", argv[0], ": ", strerror(error_number)));
}

}  // namespace gshard
