#include "client/child_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "services/base/spawn.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

constexpr std::chrono::milliseconds kPoll{20};
constexpr std::streamoff kTailBytes = 16 << 10;

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(
    const std::string& name, const std::vector<std::string>& argv,
    const std::string& log_path) {
  const int log =
      open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (log < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(log_path, ": ", strerror(errno)));
  }
  const int64_t start = lseek(log, 0, SEEK_END);
  const absl::StatusOr<pid_t> pid = Spawn(argv, {.output = log,
                                                 .error = log,
                                                 .death_signal = SIGTERM,
                                                 .own_process_group = true});
  close(log);
  RETURN_IF_ERROR(pid.status());
  return std::unique_ptr<ChildProcess>(
      new ChildProcess(name, log_path, start, *pid));
}

ChildProcess::ChildProcess(std::string name, std::string log_path,
                           int64_t log_start, pid_t pid)
    : name_(std::move(name)),
      log_path_(std::move(log_path)),
      log_start_(log_start),
      pid_(pid) {}

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

std::string ChildProcess::LastLogLines(int lines) const {
  return LastLines(log_path_, lines, log_start_);
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

std::string LastLines(const std::string& path, int lines, int64_t start) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return "";
  const std::streamoff size = file.tellg();
  const std::streamoff bytes =
      std::clamp<std::streamoff>(size - start, 0, kTailBytes);
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
