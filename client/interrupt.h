// Interrupt: handles Ctrl-C and SIGTERM for a command that has to clean up
// before it ends. Others leave them to the system, which ends them at once.

#ifndef CLIENT_INTERRUPT_H_
#define CLIENT_INTERRUPT_H_

#include <atomic>
#include <stop_token>

#include "absl/status/status.h"
#include "services/rpc/process/signal_watcher.h"

namespace gshard {

// Active from construction on; a second signal ends the process at once. At
// most one instance exists at a time.
class Interrupt {
 public:
  Interrupt();

  // Stopped by a signal.
  std::stop_token token() const { return source_.get_token(); }

  // OK until a signal arrives; then Cancelled, with the exit code of a process
  // killed by the signal, 128 + its number.
  absl::Status status() const;

 private:
  std::stop_source source_;
  std::atomic<int> signal_ = 0;
  SignalWatcher signals_;  // last: its thread uses the members above
};

}  // namespace gshard

#endif  // CLIENT_INTERRUPT_H_
