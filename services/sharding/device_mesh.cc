#include "services/sharding/device_mesh.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "services/base/check.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

constexpr int64_t kMaxDevices = int64_t{1} << 20;

bool IsName(const std::string& name) {
  return !name.empty() && absl::ascii_isalpha(name[0]) &&
         std::all_of(name.begin(), name.end(),
                     [](char c) { return absl::ascii_isalnum(c) || c == '_'; });
}

}  // namespace

bool Contains(const Axes& axes, int axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

bool IsProperPrefix(const Axes& prefix, const Axes& axes) {
  return prefix.size() < axes.size() &&
         std::equal(prefix.begin(), prefix.end(), axes.begin());
}

absl::StatusOr<DeviceMesh> DeviceMesh::Create(std::vector<MeshAxis> axes) {
  DeviceMesh mesh;
  if (axes.empty()) {
    return absl::InvalidArgumentError("a mesh must have at least one axis");
  }
  for (const MeshAxis& axis : axes) {
    if (!IsName(axis.name)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the name of an axis must be letters, digits and underscores, got '",
          axis.name, "'"));
    }
    for (const MeshAxis& other : mesh.axes_) {
      if (other.name == axis.name) {
        return absl::InvalidArgumentError(
            absl::StrCat("the mesh has two axes '", axis.name, "'"));
      }
    }
    if (axis.size < 0 || (axis.size == kElastic && !IsName(axis.symbol))) {
      return absl::InvalidArgumentError(absl::StrCat(
          "axis '", axis.name,
          "' must have a size of at least 1 or be elastic with a symbol, got ",
          axis.size));
    }
    auto role = std::find(mesh.roles_.begin(), mesh.roles_.end(), axis.role);
    mesh.role_of_.push_back(role - mesh.roles_.begin());
    if (role == mesh.roles_.end()) mesh.roles_.push_back(axis.role);
    mesh.axes_.push_back(axis);
  }
  mesh.stride_.assign(mesh.axes_.size(), 1);
  std::vector<int64_t> devices(mesh.roles_.size(), 1);
  for (int a = mesh.num_axes(); a-- > 0;) {
    int64_t& count = devices[mesh.role_of_[a]];
    mesh.stride_[a] = count;
    count *= std::max<int64_t>(mesh.axes_[a].size, 1);
    if (count > kMaxDevices) {
      return absl::InvalidArgumentError(
          absl::StrCat("role '", mesh.axes_[a].role, "' has more than ",
                       kMaxDevices, " devices"));
    }
  }
  return mesh;
}

Axes DeviceMesh::AxesOfRole(int role) const {
  Axes axes;
  for (int a = 0; a < num_axes(); ++a) {
    if (role_of_[a] == role) axes.push_back(a);
  }
  return axes;
}

int64_t DeviceMesh::NumDevices(int role) const {
  const Axes axes = AxesOfRole(role);
  CHECK(!IsElastic(axes));
  return Parts(axes);
}

absl::StatusOr<int> DeviceMesh::Find(absl::string_view name) const {
  for (int a = 0; a < num_axes(); ++a) {
    if (axes_[a].name == name) return a;
  }
  return absl::NotFoundError(absl::StrCat(
      "the mesh has no axis '", name, "', only ",
      absl::StrJoin(axes_, ", ", [](std::string* out, const MeshAxis& axis) {
        absl::StrAppend(out, "'", axis.name, "'");
      })));
}

absl::StatusOr<Axes> DeviceMesh::FindAll(absl::string_view names) const {
  Axes axes;
  for (const absl::string_view name :
       absl::StrSplit(names, ',', absl::SkipEmpty())) {
    ASSIGN_OR_RETURN(const int a, Find(name));
    axes.push_back(a);
  }
  return axes;
}

std::string DeviceMesh::Names(const Axes& axes) const {
  return absl::StrJoin(axes, ",", [&](std::string* out, int a) {
    absl::StrAppend(out, axes_[a].name);
  });
}

Axes DeviceMesh::WithoutSingles(const Axes& axes) const {
  Axes left;
  for (const int a : axes) {
    if (axes_[a].size != 1) left.push_back(a);
  }
  return left;
}

bool DeviceMesh::IsElastic(const Axes& axes) const {
  return std::any_of(axes.begin(), axes.end(),
                     [&](int a) { return axes_[a].size == kElastic; });
}

int64_t DeviceMesh::Parts(const Axes& axes) const {
  int64_t parts = 1;
  for (const int a : axes) parts *= axes_[a].size;
  return parts;
}

int64_t DeviceMesh::Index(int64_t device, const Axes& axes) const {
  int64_t index = 0;
  for (const int a : axes) {
    index = index * axes_[a].size + device / stride_[a] % axes_[a].size;
  }
  return index;
}

std::vector<int> DeviceMesh::Group(int64_t device, const Axes& axes) const {
  int64_t first = device;
  for (const int a : axes) {
    first -= device / stride_[a] % axes_[a].size * stride_[a];
  }
  std::vector<int> group;
  for (int64_t i = 0; i < Parts(axes); ++i) {
    int64_t member = first, rest = i;
    for (size_t k = axes.size(); k-- > 0;) {
      const int64_t size = axes_[axes[k]].size;
      member += rest % size * stride_[axes[k]];
      rest /= size;
    }
    group.push_back(static_cast<int>(member));
  }
  return group;
}

}  // namespace gshard
