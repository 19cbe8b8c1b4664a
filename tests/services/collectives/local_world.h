// Local worlds: the devices are threads of this process.
//
// Bytes are copied once, from the sender's buffer to the receiver's. A waiting
// member sleeps instead of spinning, as there may be more devices than cores.

#ifndef TESTS_SERVICES_COLLECTIVES_LOCAL_WORLD_H_
#define TESTS_SERVICES_COLLECTIVES_LOCAL_WORLD_H_

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/collectives/communicator.h"
#include "tests/services/collectives/world.h"

namespace gshard {

class LocalDevices;  // state shared by the worlds of a run

// Destroying a world leaves the run: exchanges that wait for it, and later ones
// with it, return Unavailable. If two members disagree about sizes, all members
// of the group get InvalidArgument, and the group stays usable.
class LocalWorld : public World {
 public:
  LocalWorld(std::shared_ptr<LocalDevices> devices, int rank);
  ~LocalWorld() override;
  LocalWorld(const LocalWorld&) = delete;
  LocalWorld& operator=(const LocalWorld&) = delete;

  int rank() const override { return rank_; }
  int size() const override;
  absl::StatusOr<Communicator*> Group(absl::Span<const int> ranks) override;

  // Wakes every waiting device and ends all communication of the run: exchanges
  // return Cancelled with the message of `why`. Only the first call has an
  // effect. Thread-safe.
  void Abort(const absl::Status& why);

  // Ends this device's communication, as if this were destroyed. Thread-safe.
  void Leave();

 private:
  const std::shared_ptr<LocalDevices> devices_;
  const int rank_;
  std::map<std::vector<int>, std::unique_ptr<Communicator>> groups_;
};

// The worlds of `size` devices, by rank. REQUIRES: size > 0.
std::vector<std::unique_ptr<LocalWorld>> LocalWorlds(int size);

// Runs `device` on `size` threads, each with its own world, and waits for all.
// When one fails, the others' communication is cancelled.
//
// Errors: the error of the lowest rank that was not merely cancelled, prefixed
// with "device R: ".
absl::Status RunOnDevices(int size,
                          const std::function<absl::Status(World&)>& device);

}  // namespace gshard

#endif  // TESTS_SERVICES_COLLECTIVES_LOCAL_WORLD_H_
