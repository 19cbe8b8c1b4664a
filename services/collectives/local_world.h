// Local worlds: the devices are threads of this process.
//
// Bytes are copied once, from where a member has them to where another wants
// them. A member that waits sleeps; it does not spin, as there may be more
// devices than cores.

#ifndef SERVICES_COLLECTIVES_LOCAL_WORLD_H_
#define SERVICES_COLLECTIVES_LOCAL_WORLD_H_

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/collectives/communicator.h"
#include "services/collectives/world.h"

namespace gshard {

class LocalDevices;  // what the worlds of a run share

// A world whose object is gone has left: exchanges that wait for it, and later
// ones with it, return Unavailable. Sizes that two members disagree about are
// InvalidArgument on all members of the group, which stays usable.
class LocalWorld : public World {
 public:
  LocalWorld(std::shared_ptr<LocalDevices> devices, int rank);
  ~LocalWorld() override;
  LocalWorld(const LocalWorld&) = delete;
  LocalWorld& operator=(const LocalWorld&) = delete;

  int rank() const override { return rank_; }
  int size() const override;
  absl::StatusOr<Communicator*> Group(absl::Span<const int> ranks) override;

  // Wakes every device that waits, and ends all communication of the run:
  // exchanges return Cancelled with the message of `why`. The first call
  // counts. Callable from any thread.
  void Abort(const absl::Status& why);

  // Ends this device's communication, as if its object were gone. Callable from
  // any thread.
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
// Errors: the error of the lowest rank that did not merely get cancelled, with
// "device R: " in front.
absl::Status RunOnDevices(int size,
                          const std::function<absl::Status(World&)>& device);

}  // namespace gshard

#endif  // SERVICES_COLLECTIVES_LOCAL_WORLD_H_
