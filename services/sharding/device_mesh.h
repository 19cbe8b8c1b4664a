// DeviceMesh: the devices that a program is partitioned for, as named axes.
//
// Each axis belongs to a role. The devices of a role are the points of the grid
// that its axes span, numbered with the last axis fastest; roles are disjoint
// sets of processes. The paper's meshes have one role; routers and expert
// workers are two:
//
//   DeviceMesh::Create({{"router", 4, "router"}, {"expert", 8, "worker"}})

#ifndef SERVICES_SHARDING_DEVICE_MESH_H_
#define SERVICES_SHARDING_DEVICE_MESH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace gshard {

// Indices of axes of a mesh, the major one first.
using Axes = std::vector<int>;

bool Contains(const Axes& axes, int axis);
// Whether `axes` begins with `prefix` and has more.
bool IsProperPrefix(const Axes& prefix, const Axes& axes);

struct MeshAxis {
  std::string name;  // letters, digits, underscores
  int64_t size = 1;  // kElastic or at least 1
  std::string role;
  // For an elastic axis: the symbol of the local size of a dimension that it
  // splits.
  std::string symbol = "";
};

// An axis whose size may change while the program runs: each device holds any
// number of the parts (experts), known only to itself. Elastic axes split
// dimensions of parameters and ragged rows.
inline constexpr int64_t kElastic = 0;

class DeviceMesh {
 public:
  // The first role holds everything without a sharding.
  //
  // Errors: InvalidArgument for no axes, a bad or repeated name, a negative
  // size, an elastic axis without a symbol, more than 2^20 devices.
  static absl::StatusOr<DeviceMesh> Create(std::vector<MeshAxis> axes);

  int num_axes() const { return static_cast<int>(axes_.size()); }
  const MeshAxis& axis(int a) const { return axes_[a]; }
  const std::vector<std::string>& roles() const { return roles_; }
  // Index into roles().
  int RoleOf(int a) const { return role_of_[a]; }
  Axes AxesOfRole(int role) const;
  // Product of the sizes of the role's axes. REQUIRES: none is elastic.
  int64_t NumDevices(int role = 0) const;

  // Errors: NotFound naming the available axes.
  absl::StatusOr<int> Find(absl::string_view name) const;
  // Parses "expert" or "router,model".
  absl::StatusOr<Axes> FindAll(absl::string_view names) const;
  std::string Names(const Axes& axes) const;
  // Axes with one device split nothing.
  Axes WithoutSingles(const Axes& axes) const;

  // Product of their sizes, 1 for none; kElastic if one is elastic.
  int64_t Parts(const Axes& axes) const;
  bool IsElastic(const Axes& axes) const;

  // Index of a device of the axes' role along these axes.
  int64_t Index(int64_t device, const Axes& axes) const;
  // The devices that differ from `device` only along these axes, by Index.
  std::vector<int> Group(int64_t device, const Axes& axes) const;

 private:
  std::vector<MeshAxis> axes_;
  std::vector<std::string> roles_;
  std::vector<int> role_of_;
  std::vector<int64_t> stride_;  // per axis, in its role's device numbers
};

}  // namespace gshard

#endif  // SERVICES_SHARDING_DEVICE_MESH_H_
