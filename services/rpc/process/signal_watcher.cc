#include "services/rpc/process/signal_watcher.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "services/base/check.h"

namespace gshard {
namespace {

constexpr int kSignals[] = {SIGTERM, SIGINT};

// Signal handlers can access static variables only.
std::atomic<bool> watched{false};
std::atomic<bool> signalled{false};
int pipe_ends[2] = {-1, -1};
struct sigaction former[2];

// Only calls that are safe in a signal handler.
void OnSignal(int number) {
  const int saved_errno = errno;
  if (signalled.exchange(true)) _exit(128 + number);
  const auto byte = static_cast<uint8_t>(number);
  // Cannot fail: the pipe is empty, and open until the handler is removed.
  [[maybe_unused]] const ssize_t written = write(pipe_ends[1], &byte, 1);
  errno = saved_errno;
}

}  // namespace

SignalWatcher::SignalWatcher(std::function<void(int)> callback)
    : callback_(std::move(callback)) {
  CHECK(!watched.exchange(true));
  signalled = false;
  CHECK(pipe2(pipe_ends, O_CLOEXEC) == 0);
  signal(SIGPIPE, SIG_IGN);
  thread_ = std::thread([this] { Watch(); });
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  for (int i = 0; i < 2; ++i) sigaction(kSignals[i], &action, &former[i]);
}

SignalWatcher::~SignalWatcher() {
  for (int i = 0; i < 2; ++i) sigaction(kSignals[i], &former[i], nullptr);
  close(pipe_ends[1]);  // ends Watch()
  thread_.join();
  close(pipe_ends[0]);
  watched = false;
}

void SignalWatcher::Watch() {
  uint8_t number = 0;
  ssize_t count = 0;
  do {
    count = read(pipe_ends[0], &number, 1);
  } while (count < 0 && errno == EINTR);
  if (count == 1) callback_(number);
}

}  // namespace gshard
