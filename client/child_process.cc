#include "client/child_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace gshard {
namespace {

constexpr std::chrono::milliseconds kPoll{20};
constexpr std::streamoff kTailBytes = 16 << 10;

// Becomes the program. Between fork and exec of a process with threads only
// system calls are safe, so everything is prepared before.
[[noreturn]] void BecomeProgram(char* const* argv, pid_t parent, int input,
                                int log) {
  sigset_t none;
  sigemptyset(&none);
  struct sigaction standard = {};
  standard.sa_handler = SIG_DFL;
  for (int number : {SIGPIPE, SIGTERM, SIGINT}) {
    sigaction(number, &standard, nullptr);
  }
  sigprocmask(SIG_SETMASK, &none, nullptr);
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(127);  // it ended before prctl()
  dup2(input, STDIN_FILENO);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  execv(argv[0], argv);
  _exit(127);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(
    const std::string& name, const std::vector<std::string>& argv,
    const std::string& log_path) {
  if (access(argv[0].c_str(), X_OK) != 0) {
    return absl::NotFoundError(absl::StrCat("no program ", argv[0]));
  }
  const int log =
      open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (log < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(log_path, ": ", strerror(errno)));
  }
  const int input = open("/dev/null", O_RDONLY | O_CLOEXEC);
  std::vector<char*> arguments;
  for (const std::string& argument : argv) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  const pid_t parent = getpid();
  // A signal to the child waits until it has dropped this process's handlers,
  // which would take it for one of ours.
  sigset_t all, former;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &former);
  const pid_t pid = fork();
  if (pid == 0) BecomeProgram(arguments.data(), parent, input, log);
  const int error_number = errno;
  pthread_sigmask(SIG_SETMASK, &former, nullptr);
  close(input);
  close(log);
  if (pid < 0) {
    return absl::InternalError(
        absl::StrCat("cannot start ", argv[0], ": ", strerror(error_number)));
  }
  return std::unique_ptr<ChildProcess>(new ChildProcess(name, log_path, pid));
}

ChildProcess::ChildProcess(std::string name, std::string log_path, pid_t pid)
    : name_(std::move(name)), log_path_(std::move(log_path)), pid_(pid) {}

ChildProcess::~ChildProcess() { WaitOrKill(std::chrono::milliseconds(0)); }

const std::optional<std::string>& ChildProcess::Ended() {
  if (ended_.has_value()) return ended_;
  int status = 0;
  const pid_t waited = waitpid(pid_, &status, WNOHANG);
  if (waited == 0 || (waited < 0 && errno == EINTR)) return ended_;
  if (waited < 0) {
    ended_ = "unknown end";
    return ended_;
  }
  status_ = status;
  if (WIFSIGNALED(status)) {
    ended_ = absl::StrCat("signal ", WTERMSIG(status), " (",
                          strsignal(WTERMSIG(status)), ")");
  } else {
    ended_ = absl::StrCat("exit status ", WEXITSTATUS(status));
  }
  return ended_;
}

bool ChildProcess::Succeeded() {
  return Ended().has_value() && WIFEXITED(status_) && WEXITSTATUS(status_) == 0;
}

bool ChildProcess::EndedBy(int signal) {
  return Ended().has_value() && WIFSIGNALED(status_) &&
         WTERMSIG(status_) == signal;
}

void ChildProcess::Terminate() {
  if (!Ended().has_value()) kill(pid_, SIGTERM);
}

bool ChildProcess::WaitOrKill(std::chrono::milliseconds grace) {
  const auto end = std::chrono::steady_clock::now() + grace;
  while (!Ended().has_value()) {
    if (std::chrono::steady_clock::now() >= end) {
      kill(pid_, SIGKILL);
      while (!Ended().has_value()) std::this_thread::sleep_for(kPoll);
      return false;
    }
    std::this_thread::sleep_for(kPoll);
  }
  return true;
}

std::string LastLines(const std::string& path, int lines) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return "";
  const std::streamoff size = file.tellg();
  const std::streamoff bytes = std::min(size, kTailBytes);
  std::string text(bytes, '\0');
  file.seekg(size - bytes);
  file.read(text.data(), bytes);
  std::vector<std::string> all = absl::StrSplit(text, '\n', absl::SkipEmpty());
  if (all.size() > static_cast<size_t>(lines)) {
    all.erase(all.begin(), all.end() - lines);
  }
  return absl::StrJoin(all, "\n");
}

}  // namespace gshard
