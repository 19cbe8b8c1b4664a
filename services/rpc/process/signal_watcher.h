// SignalWatcher: delivers SIGTERM and SIGINT as a callback on a thread of its
// own, where any code may run.

#ifndef SERVICES_RPC_PROCESS_SIGNAL_WATCHER_H_
#define SERVICES_RPC_PROCESS_SIGNAL_WATCHER_H_

#include <functional>
#include <thread>

namespace gshard {

// Create it before any slow initialization, so that signals during loading are
// not lost. At most one may exist at a time. SIGPIPE is ignored from then on.
class SignalWatcher {
 public:
  // `callback` gets the number of the first signal, once. A second signal ends
  // the process at once, with exit code 128 + its number: the way out of a
  // drain that takes too long.
  explicit SignalWatcher(std::function<void(int)> callback);

  // Restores the previous signal handlers. Waits for a callback that is
  // running.
  ~SignalWatcher();

  SignalWatcher(const SignalWatcher&) = delete;
  SignalWatcher& operator=(const SignalWatcher&) = delete;

 private:
  void Watch();

  std::function<void(int)> callback_;
  std::thread thread_;
};

}  // namespace gshard

#endif  // SERVICES_RPC_PROCESS_SIGNAL_WATCHER_H_
