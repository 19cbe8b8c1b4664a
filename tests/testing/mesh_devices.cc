#include "tests/testing/mesh_devices.h"

#include "services/base/status_macros.h"

namespace gshard {

absl::StatusOr<int64_t> MeshDevices::Index(absl::string_view axes) {
  ASSIGN_OR_RETURN(const Axes found, mesh_.FindAll(axes));
  return mesh_.Index(world_.rank(), found);
}

absl::StatusOr<Communicator*> MeshDevices::Along(absl::string_view axes) {
  ASSIGN_OR_RETURN(const Axes found, mesh_.FindAll(axes));
  return world_.Group(mesh_.Group(world_.rank(), found));
}

}  // namespace gshard
