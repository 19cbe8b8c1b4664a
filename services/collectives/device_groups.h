// DeviceGroups: one device's view of the other devices of a partitioned
// program. Axes are those of a device mesh (services/sharding/device_mesh.h);
// "a,b" stands for two of them, a the major one.

#ifndef SERVICES_COLLECTIVES_DEVICE_GROUPS_H_
#define SERVICES_COLLECTIVES_DEVICE_GROUPS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/collectives/communicator.h"

namespace gshard {

class DeviceGroups {
 public:
  virtual ~DeviceGroups() = default;

  // This device's index along the axes.
  //
  // Errors: InvalidArgument for an axis that the mesh does not have.
  virtual absl::StatusOr<int64_t> Index(absl::string_view axes) = 0;

  // The devices that differ from this one only along these axes, ranked by
  // their index along them. Owned by this object.
  //
  // Errors: InvalidArgument for an unknown axis; Unavailable if the group
  // cannot be formed.
  virtual absl::StatusOr<Communicator*> Along(absl::string_view axes) = 0;
};

}  // namespace gshard

#endif  // SERVICES_COLLECTIVES_DEVICE_GROUPS_H_
