// SigpipeGuard: during its lifetime, writes of this thread to a closed
// connection are errors, not signals. For libraries that write without
// MSG_NOSIGNAL.

#ifndef SERVICES_COLLECTIVES_SIGPIPE_GUARD_H_
#define SERVICES_COLLECTIVES_SIGPIPE_GUARD_H_

#include <signal.h>
#include <time.h>

namespace gshard {

// Threads started meanwhile inherit the mask permanently.
class SigpipeGuard {
 public:
  SigpipeGuard() {
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE);
    sigemptyset(&sigpipe_);
    sigaddset(&sigpipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &sigpipe_, &former_);
  }
  ~SigpipeGuard() {
    // A pending signal must not be delivered when the mask is removed.
    const timespec now = {};
    if (!was_pending_) sigtimedwait(&sigpipe_, nullptr, &now);
    pthread_sigmask(SIG_SETMASK, &former_, nullptr);
  }
  SigpipeGuard(const SigpipeGuard&) = delete;
  SigpipeGuard& operator=(const SigpipeGuard&) = delete;

 private:
  bool was_pending_;
  sigset_t sigpipe_;
  sigset_t former_;
};

}  // namespace gshard

#endif  // SERVICES_COLLECTIVES_SIGPIPE_GUARD_H_
