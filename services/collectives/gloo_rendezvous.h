// GlooRendezvous: rendezvous over TCP with the gloo library, for processes on
// one or several machines without a shared folder.
//
// An address is a port that accepts one connection, until Join() or the end of
// the rendezvous. Peers are not authenticated: members need an isolated
// network.

#ifndef SERVICES_COLLECTIVES_GLOO_RENDEZVOUS_H_
#define SERVICES_COLLECTIVES_GLOO_RENDEZVOUS_H_

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "services/base/mutex.h"
#include "services/collectives/rendezvous.h"

namespace gshard {

struct GlooRendezvousOptions {
  int rank = 0;
  int size = 1;
  // Where to listen: a host name or address of this machine that the others can
  // reach.
  std::string host = "127.0.0.1";
  // Timeout of each exchange. Join() waits five times as long.
  std::chrono::milliseconds timeout = std::chrono::seconds(30);
};

class GlooCommunicator;

class GlooRendezvous : public Rendezvous {
 public:
  // Errors: InvalidArgument for a rank outside [0, size), a timeout that is not
  // positive, or a host or interface that cannot be listened on.
  static absl::StatusOr<std::unique_ptr<GlooRendezvous>> Create(
      const GlooRendezvousOptions& options);

  ~GlooRendezvous() override;

  const std::vector<std::string>& addresses() const override {
    return addresses_;
  }
  absl::StatusOr<Communicator*> Join(
      absl::Span<const std::string> addresses) override;
  void Abort() override;

 private:
  class Endpoints;  // local ends of connections

  GlooRendezvous();

  std::vector<std::string> addresses_;
  Mutex mutex_;
  bool aborted_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Endpoints> owned_endpoints_;  // until Join() is over
  Endpoints* endpoints_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::unique_ptr<GlooCommunicator> group_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gshard

#endif  // SERVICES_COLLECTIVES_GLOO_RENDEZVOUS_H_
