#include "client/interrupt.h"

#include "client/command.h"

namespace gshard {

Interrupt::Interrupt()
    : signals_([this](int number) {
        signal_ = number;
        source_.request_stop();
      }) {}

absl::Status Interrupt::status() const {
  if (signal_ == 0) return absl::OkStatus();
  return WithExitCode(absl::CancelledError("interrupted"), 128 + signal_);
}

}  // namespace gshard
