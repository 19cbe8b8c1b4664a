// MeshDevices: the groups of a mesh, for one device of one of its roles.

#ifndef TESTS_TESTING_MESH_DEVICES_H_
#define TESTS_TESTING_MESH_DEVICES_H_

#include "services/collectives/device_groups.h"
#include "services/sharding/device_mesh.h"
#include "tests/services/collectives/world.h"

namespace gshard {

// The rank in the world is the device's number in its role. Neither is owned;
// both must outlive this. Not thread-safe: one thread per device.
class MeshDevices : public DeviceGroups {
 public:
  MeshDevices(const DeviceMesh& mesh, World& world)
      : mesh_(mesh), world_(world) {}

  absl::StatusOr<int64_t> Index(absl::string_view axes) override;
  absl::StatusOr<Communicator*> Along(absl::string_view axes) override;

 private:
  const DeviceMesh& mesh_;
  World& world_;
};

}  // namespace gshard

#endif  // TESTS_TESTING_MESH_DEVICES_H_
