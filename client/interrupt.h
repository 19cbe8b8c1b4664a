// Interrupt: Ctrl-C and SIGTERM for a command that has to clear away something
// before it ends. Others leave them to the system, which ends them at once.

#ifndef CLIENT_INTERRUPT_H_
#define CLIENT_INTERRUPT_H_

#include <atomic>
#include <stop_token>

#include "absl/status/status.h"
#include "services/rpc/process/signal_watcher.h"

namespace gshard {

// From its making on; a second signal ends the process at once. At most one
// exists at a time.
class Interrupt {
 public:
  Interrupt();

  // What a signal stops.
  std::stop_token token() const { return source_.get_token(); }

  // OK as long as no signal has come; then Cancelled, with which the program
  // ends as one does that the signal has ended, 128 + its number.
  absl::Status status() const;

 private:
  std::stop_source source_;
  std::atomic<int> signal_ = 0;
  SignalWatcher signals_;  // last: its thread uses the others
};

}  // namespace gshard

#endif  // CLIENT_INTERRUPT_H_
