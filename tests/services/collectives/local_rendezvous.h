// LocalRendezvous: the members are threads of this process and already
// connected. The in-process counterpart of the other rendezvous.

#ifndef TESTS_SERVICES_COLLECTIVES_LOCAL_RENDEZVOUS_H_
#define TESTS_SERVICES_COLLECTIVES_LOCAL_RENDEZVOUS_H_

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "services/collectives/rendezvous.h"
#include "tests/services/collectives/local_world.h"

namespace gshard {

class LocalRendezvous : public Rendezvous {
 public:
  // One of the worlds of LocalWorlds().
  explicit LocalRendezvous(std::unique_ptr<LocalWorld> world);
  ~LocalRendezvous() override;

  const std::vector<std::string>& addresses() const override {
    return addresses_;
  }
  absl::StatusOr<Communicator*> Join(
      absl::Span<const std::string> addresses) override;
  void Abort() override;

 private:
  class Group;

  const std::unique_ptr<LocalWorld> world_;
  const std::vector<std::string> addresses_;
  std::atomic<bool> aborted_ = false;
  std::unique_ptr<Group> group_;
};

}  // namespace gshard

#endif  // TESTS_SERVICES_COLLECTIVES_LOCAL_RENDEZVOUS_H_
