#include "services/partition/ops/part_position.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

std::vector<absl::string_view> AxesOf(const Attributes& attributes) {
  return absl::StrSplit(StringAttribute(attributes, "axes"), ';');
}

}  // namespace

Attributes PositionAttributes(const Shape& shape, const Sharding& sharding,
                              const DeviceMesh& mesh, Attributes more) {
  std::vector<std::string> axes;
  std::vector<int64_t> sizes, parts;
  for (size_t d = 0; d < shape.size(); ++d) {
    axes.push_back(mesh.Names(sharding.dims[d].axes));
    sizes.push_back(shape[d].is_static() ? shape[d].size() : 0);
    parts.push_back(mesh.Parts(sharding.dims[d].axes));
  }
  more["axes"] = absl::StrJoin(axes, ";");
  more["sizes"] = std::move(sizes);
  more["parts"] = std::move(parts);
  return more;
}

absl::Status ExpectPosition(const Attributes& attributes, size_t rank) {
  RETURN_IF_ERROR(ExpectAttribute<std::string>(attributes, "axes"));
  RETURN_IF_ERROR(ExpectAttribute<std::vector<int64_t>>(attributes, "sizes"));
  RETURN_IF_ERROR(ExpectAttribute<std::vector<int64_t>>(attributes, "parts"));
  const size_t axes = rank == 0 ? 0 : AxesOf(attributes).size();
  if (axes == rank && IntsAttribute(attributes, "sizes").size() == rank &&
      IntsAttribute(attributes, "parts").size() == rank) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "'axes', 'sizes' and 'parts' must have ", rank, " entries, got '",
      StringAttribute(attributes, "axes"), "'"));
}

absl::StatusOr<DeviceGroups*> DevicesOf(const KernelContext& context) {
  auto* const devices = context.run.Get<DeviceGroups>();
  if (devices != nullptr) return devices;
  return absl::FailedPreconditionError(
      "a partitioned program runs on devices of a mesh");
}

absl::StatusOr<int64_t> DeviceIndex(const KernelContext& context) {
  ASSIGN_OR_RETURN(DeviceGroups* const devices, DevicesOf(context));
  return devices->Index(StringAttribute(context.attributes(), "axes"));
}

absl::StatusOr<PartPosition> FindPosition(const KernelContext& context,
                                          const Dims& local) {
  ASSIGN_OR_RETURN(DeviceGroups* const devices, DevicesOf(context));
  const Attributes& attributes = context.attributes();
  const std::vector<absl::string_view> axes = AxesOf(attributes);
  PartPosition position;
  for (size_t d = 0; d < local.size(); ++d) {
    int64_t index = 0;
    if (!axes[d].empty()) {
      ASSIGN_OR_RETURN(index, devices->Index(axes[d]));
    }
    const int64_t size = IntsAttribute(attributes, "sizes")[d];
    position.begin.push_back(index * local[d]);
    position.whole.push_back(
        size > 0 ? size : local[d] * IntsAttribute(attributes, "parts")[d]);
  }
  return position;
}

}  // namespace gshard
