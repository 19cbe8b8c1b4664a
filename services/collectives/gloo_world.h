// Gloo worlds: the devices are processes, on one machine or several, that send
// over TCP with the gloo library.
//
// The members of a group find each other through a folder that all can write,
// where gloo leaves their addresses, and then hold one connection per pair.

#ifndef SERVICES_COLLECTIVES_GLOO_WORLD_H_
#define SERVICES_COLLECTIVES_GLOO_WORLD_H_

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/collectives/communicator.h"
#include "services/collectives/world.h"

namespace gshard {

struct GlooOptions {
  int rank = 0;
  int size = 1;
  // An existing folder that all devices share and that belongs to this run: one
  // that a former run used holds addresses that nobody listens on.
  std::string rendezvous_folder;
  // Where to listen: a network interface such as "eth0" or, if that is empty, a
  // host name or address of this machine that the others reach.
  std::string network_interface;
  std::string host = "127.0.0.1";
  // For the members of a group to come together, where gloo may take a second
  // more to notice, and for each exchange.
  std::chrono::milliseconds timeout = std::chrono::seconds(30);
};

// Sizes that two ends disagree about cannot be seen: both wait for the bytes
// that do not come until DeadlineExceeded. A group that had an error is closed,
// so that its other members find out at once, as Unavailable, and returns that
// error from then on.
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

  // Waits for the members unless the group has been formed before.
  absl::StatusOr<Communicator*> Group(absl::Span<const int> ranks) override;

 private:
  struct Network;  // gloo's part

  GlooWorld(const GlooOptions& options, std::unique_ptr<Network> network);

  const GlooOptions options_;
  const std::unique_ptr<Network> network_;
  std::map<std::vector<int>, std::unique_ptr<Communicator>> groups_;
};

}  // namespace gshard

#endif  // SERVICES_COLLECTIVES_GLOO_WORLD_H_
