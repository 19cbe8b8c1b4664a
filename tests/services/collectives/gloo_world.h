// Gloo worlds: the devices are processes, on one or several machines, that
// communicate over TCP with the gloo library.
//
// The members of a group find each other through a shared writable folder, in
// which gloo leaves their addresses, and then keep one connection per pair.

#ifndef TESTS_SERVICES_COLLECTIVES_GLOO_WORLD_H_
#define TESTS_SERVICES_COLLECTIVES_GLOO_WORLD_H_

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/collectives/communicator.h"
#include "tests/services/collectives/world.h"

namespace gshard {

struct GlooOptions {
  int rank = 0;
  int size = 1;
  // An existing folder that all devices share, exclusive to this run: addresses
  // left by an earlier run are stale.
  std::string rendezvous_folder;
  // Where to listen; see GlooRendezvousOptions.
  std::string host = "127.0.0.1";
  // Timeout for forming a group, in which gloo may take a second more, and for
  // each exchange.
  std::chrono::milliseconds timeout = std::chrono::seconds(30);
};

// A disagreement of two ends about sizes is not detected: both wait for missing
// bytes until DeadlineExceeded. A group is closed at its first error, so that
// the other members get Unavailable at once, and returns that error from then
// on.
class GlooWorld : public World {
 public:
  // Errors: InvalidArgument for a rank outside [0, size), a timeout that is not
  // positive, or a host or interface that cannot be listened on; NotFound if
  // there is no rendezvous folder.
  static absl::StatusOr<std::unique_ptr<GlooWorld>> Create(
      const GlooOptions& options);

  ~GlooWorld() override;

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }

  // Waits for the members unless the group already exists.
  absl::StatusOr<Communicator*> Group(absl::Span<const int> ranks) override;

 private:
  struct Network;  // gloo's part

  GlooWorld(const GlooOptions& options, std::unique_ptr<Network> network);

  const GlooOptions options_;
  const std::unique_ptr<Network> network_;
  std::map<std::vector<int>, std::unique_ptr<Communicator>> groups_;
};

}  // namespace gshard

#endif  // TESTS_SERVICES_COLLECTIVES_GLOO_WORLD_H_
