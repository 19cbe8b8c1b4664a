// GlooCommunicator: a group whose members are connected by gloo. Used only by
// gloo_rendezvous, which hides its headers.

#ifndef SERVICES_COLLECTIVES_GLOO_COMMUNICATOR_H_
#define SERVICES_COLLECTIVES_GLOO_COMMUNICATOR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gloo/context.h"
#include "gloo/transport/device.h"
#include "gloo/transport/unbound_buffer.h"
#include "services/base/mutex.h"
#include "services/collectives/communicator.h"

namespace gshard {

// Opens the device for this process's connections, on `host`, a name or address
// of this machine. Errors: InvalidArgument if it is none.
absl::StatusOr<std::shared_ptr<gloo::transport::Device>> OpenGlooDevice(
    const std::string& host);

class GlooCommunicator : public Communicator {
 public:
  // A context whose members are connected. Its timeout applies to each
  // exchange.
  explicit GlooCommunicator(std::unique_ptr<gloo::Context> context);
  ~GlooCommunicator() override;

  int rank() const override { return context_->rank; }
  int size() const override { return context_->size; }

  // The first exchange, which tells each member that all others are connected.
  // Before it, connections must only be closed by destroying this object, not
  // reset: gloo terminates a process that finds a new connection reset.
  absl::Status Greet();

  // Closes the group at the first error, to notify the other members. REQUIRES:
  // Greet() has succeeded.
  absl::Status Exchange(absl::Span<const SendBytes> send,
                        absl::Span<const ReceiveBytes> receive) override;

  // Makes a running exchange, and all later ones, return Cancelled.
  // Thread-safe.
  void Abort();

 private:
  using Buffer = std::unique_ptr<gloo::transport::UnboundBuffer>;

  // An exchange whose error does not close the group.
  absl::Status TryExchange(absl::Span<const SendBytes> send,
                           absl::Span<const ReceiveBytes> receive);
  void ExchangeOrThrow(absl::Span<const SendBytes> send,
                       absl::Span<const ReceiveBytes> receive);
  // Resets all connections.
  void Close();
  // Registers the buffers of an exchange, so that Abort() can wake their
  // waiters; false after an abort.
  bool Announce(const std::vector<Buffer>* sending,
                const std::vector<Buffer>* receiving);

  std::unique_ptr<gloo::Context> context_;
  uint64_t exchange_ = 0;
  absl::Status broken_;

  Mutex mutex_;
  bool aborted_ ABSL_GUARDED_BY(mutex_) = false;
  bool greeted_ ABSL_GUARDED_BY(mutex_) = false;
  const std::vector<Buffer>* sending_ ABSL_GUARDED_BY(mutex_) = nullptr;
  const std::vector<Buffer>* receiving_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace gshard

#endif  // SERVICES_COLLECTIVES_GLOO_COMMUNICATOR_H_
